"""Regions that are kept on disk as XLA made them."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
from jax.experimental import serialize_executable

from recurra.backend.jax.region import JaxBackend
from recurra.memory.plan import Plan
from recurra.program.region import Region

T = TypeVar("T")


class Kept(Protocol):
    """Where parts of a program are kept, by name."""

    def get(self, name: str, load: Callable[[bytes], T]) -> T | None: ...
    def put(self, name: str, data: bytes) -> None: ...


class CachedJax(JaxBackend):
    """XLA; a region is loaded at its first launch, or compiled and kept."""

    def __init__(self, kept: Kept):
        super().__init__()
        self.kept = kept
        self.loaded: dict[tuple[int, str], tuple[Plan, Any]] = {}

    def compile(self, plan: Plan, region: Region) -> Callable[..., tuple[Any, ...]]:
        def run(*given: Any) -> tuple[Any, ...]:
            return self.only(plan, region)(*given)

        return run

    def only(self, plan: Plan, region: Region) -> Any:
        """The compiled region, made ready once."""
        key = (id(plan), region.name)
        if key not in self.loaded:
            self.loaded[key] = (plan, self.ready(plan, region))
        return self.loaded[key][1]

    def besides(self, plan: Plan, region: Region, at: tuple[int, ...]) -> int:
        told = self.only(plan, region).memory_analysis()
        return told.temp_size_in_bytes if told else 0

    def ready(self, plan: Plan, region: Region) -> Callable[..., Any]:
        name = f"{region.name}-{place()}"
        found = self.kept.get(name, _load)
        if found is not None:
            return found
        made = self.lowered(plan, region).compile()
        self.kept.put(name, pickle.dumps(serialize_executable.serialize(made)))
        return made


def place() -> str:
    """What JAX compiles for, and how it is set: a name of its own."""
    device = jax.devices()[0]
    told = [device.platform, device.device_kind, jax.device_count(), os.environ.get("XLA_FLAGS")]
    config: Any = jax.config
    told += [config.jax_enable_x64, config.jax_default_matmul_precision]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def _load(data: bytes) -> Callable[..., Any]:
    return serialize_executable.deserialize_and_load(*pickle.loads(data))
