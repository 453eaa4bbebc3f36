"""Backend: what a program needs of a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from recurra.memory.plan import Plan
from recurra.program.region import Region
from recurra.program.walk import Machine


class Backend(Protocol):
    """Compiles regions; holds arrays. Regions may destroy (donate) what they give back."""

    name: str
    machine: Machine

    def compile(self, plan: Plan, region: Region) -> Callable[..., tuple[Any, ...]]:
        """f(seed, *times, *held, *carried, *stores) -> (*gives, *stores)"""
        ...

    def array(self, x: Any) -> Any:
        """An array of this backend, in memory of its own."""
        ...

    def numpy(self, x: Any) -> Any:
        """A NumPy array that later launches leave alone."""
        ...
