"""Workload: a file with one program, written here in recurrence equations and by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recurra.runtime.executable import Executable

Arrays = Mapping[str, Any]
ByHand = Callable[..., dict[str, Any]]  # f(**inputs) -> outputs by name


@dataclass(frozen=True)
class Workload:
    """A module `benchmarks.<suite>.<name>`, which defines

    - `SIZES` and `SMALL`: the sizes that are timed, and those of tests;
    - `inputs(rng, **sizes)`: arrays by name;
    - `recurra_program(backend, **sizes)`: the compiled program, whose inputs and outputs have
      these names;
    - `by_hand(**sizes)`: a jitted function in JAX of the same inputs, which returns the same
      outputs by name;
    - in the suite `launch`, `by_hand_eager(xp, **sizes)`: the same for `numpy` or `torch`.
    """

    suite: str
    name: str

    @property
    def module(self) -> Any:
        """The file itself."""
        return importlib.import_module(f"benchmarks.{self.suite}.{self.name}")

    def sizes(self, small: bool = False) -> dict[str, int]:
        """The sizes that are timed, or those of tests."""
        return dict(self.module.SMALL if small else self.module.SIZES)

    def inputs(self, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
        """The arrays that both forms are given; always the same."""
        return self.module.inputs(np.random.default_rng(0), **sizes)

    def program(self, backend: str, sizes: Mapping[str, int]) -> Executable:
        """Our form, compiled."""
        return self.module.recurra_program(backend, **sizes)

    def by_hand(self, backend: str, sizes: Mapping[str, int]) -> ByHand:
        """The form by hand in the library of a backend."""
        if backend == "jax":
            return self.module.by_hand(**sizes)
        return self.module.by_hand_eager(importlib.import_module(backend), **sizes)


def on_backend(backend: str, arrays: Arrays) -> dict[str, Any]:
    """The arrays in the library of a backend, each in memory of its own."""
    if backend == "jax":
        import jax

        return {name: jax.device_put(x) for name, x in arrays.items()}
    if backend == "torch":
        import torch

        return {name: torch.from_numpy(x.copy()) for name, x in arrays.items()}
    return {name: x.copy() for name, x in arrays.items()}


def waited(made: Arrays) -> dict[str, Any]:
    """The same arrays, computed: JAX returns before they are."""
    for x in made.values():
        getattr(x, "block_until_ready", lambda: None)()
    return dict(made)


def as_numpy(made: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays as NumPy's."""
    return {name: np.asarray(x.cpu() if hasattr(x, "cpu") else x) for name, x in made.items()}
