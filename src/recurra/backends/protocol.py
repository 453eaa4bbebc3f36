"""The protocol of backends: what a program asks of one, on one device or on several workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np

from recurra.codegen.array_machine import ArrayMachine
from recurra.codegen.region import Region
from recurra.cost.target import Target
from recurra.ir.arrays import LibraryArray
from recurra.storage.storage_plan import StoragePlan

Reading = Callable[..., list[Any]]  # f(machine, times, *stores)
ArrayFunction = Callable[..., tuple[LibraryArray, ...]]  # a launch or a host call
Wrap = Callable[[str, ArrayFunction], ArrayFunction]  # of one of them, by its name


class Backend(Protocol):
    """Compiles regions; holds arrays. Regions may destroy (donate) what they give back."""

    name: str

    @property
    def machine(self) -> ArrayMachine:
        """The machine that runs the statements of a region."""
        ...

    @property
    def target(self) -> Target:
        """The target for choices by cost."""
        ...

    @property
    def compiles_whole(self) -> bool:
        """May a program be one function, with all that is around its kernels? `single_run.py`."""
        ...

    @property
    def threaded(self) -> bool:
        """Do launches beside host calls run in a thread of ours? `overlap.py`."""
        ...

    def compile(self, plan: StoragePlan, region: Region) -> ArrayFunction:
        """f(seed, *times, *held, *carried, *stores, *reads) -> (*gives, *stores)"""
        ...

    def reading(self, read: Reading) -> Callable[..., list[Any]]:
        """f(times, *stores): what `read` reads on the machine that sees the stores soonest.

        Where they lie in the host's memory that takes no launch, which would be behind others.
        """
        ...

    def array(self, source: Any) -> Any:
        """An array of this backend, in memory of its own."""
        ...

    def made(self, array: np.ndarray) -> Any:
        """An array of this backend, of one that nobody else will ask for."""
        ...

    def lent(self, array: np.ndarray) -> Any:
        """The same for launches that only read it: where it lies, if they can read it there."""
        ...

    def given(self, array: np.ndarray) -> Any:
        """Make an argument of regions from a result of a host call, in memory of its own."""
        ...

    def staging(self, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, Any] | None:
        """Memory that the host writes to, and an array of this backend in it; or None.

        Whoever launches, and then writes there, changes nothing of what was launched.
        """
        ...

    def wait(self, array: Any) -> Any:
        """Wait for the result of a launch, and return it."""
        ...

    def settle(self) -> None:
        """Return when all launches so far have ended, whoever has their results."""
        ...

    def borrow(self, array: Any) -> Any:
        """An array of this backend in the memory of a foreign one (DLPack); never written to."""
        ...

    def seen(self, array: Any) -> np.ndarray:
        """An array in the host's memory, lent for so long that a launch may still destroy it."""
        ...

    def operand(self, array: Any) -> np.ndarray:
        """Make an argument of a host call, which no launch overwrites before it returns."""
        ...

    def aside(self, array: Any) -> Any:
        """A copy of an array in the host's memory, where the device's copy engine reaches it."""
        ...

    def back(self, array: Any) -> Any:
        """An array of this backend, of a copy that was put aside."""
        ...

    def numpy(self, array: Any) -> np.ndarray:
        """A NumPy array that later launches leave alone."""
        ...

    def result(self, array: Any) -> np.ndarray:
        """A NumPy array, of one that no launch is given again."""
        ...


class Mesh(Backend, Protocol):
    """A backend on several workers: every array of it is [workers, *as one worker has it]."""

    def array(self, source: Any) -> Any:
        """The same array for every worker."""
        ...

    def spread(self, parts: Sequence[Any]) -> Any:
        """An array for each worker."""
        ...

    def parts(self, array: Any) -> Iterable[Any]:
        """The part of an array that each worker has."""
        ...

    def copy(self, array: Any) -> Any:
        """An array of the mesh, in memory of its own."""
        ...


def is_mesh(backend: Backend) -> TypeGuard[Mesh]:
    """Is it one of several workers?"""
    return hasattr(backend, "spread")


def mesh_of(backend: Backend) -> Mesh:
    """The backend of a program with shards, which is a mesh."""
    assert is_mesh(backend)
    return backend
