"""The protocol of backends: how a program compiles regions and moves arrays, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from recurra.codegen.array_machine import ArrayMachine
from recurra.codegen.region import Region
from recurra.cost.target import Target
from recurra.ir.array_protocols import LibraryArray
from recurra.storage.storage_plan import StoragePlan

Reading = Callable[..., list[Any]]  # f(machine, times, *stores)
ArrayFunction = Callable[..., tuple[LibraryArray, ...]]  # a launch or a host call
Wrap = Callable[[str, ArrayFunction], ArrayFunction]  # (name, function) -> its replacement


class Backend(Protocol):
    """Compiles regions and holds arrays. Regions may destroy (donate) what they return anew."""

    name: str

    @property
    def machine(self) -> ArrayMachine:
        """The machine that the walk runs on when the host reads stores."""
        ...

    @property
    def target(self) -> Target:
        """The properties of the device that choices by cost depend on."""
        ...

    @property
    def compiles_whole(self) -> bool:
        """May a program be compiled to one function of its inputs? See `single_launch.py`."""
        ...

    @property
    def threaded(self) -> bool:
        """Must a launch run in a thread of ours to overlap with host calls?"""
        ...

    def compile(self, plan: StoragePlan, region: Region) -> ArrayFunction:
        """Return f(seed, *times, *held, *carried, *stores, *reads) -> (*gives, *stores)."""
        ...

    def reader(self, read: Reading) -> Callable[..., list[Any]]:
        """Return f(times, *stores), which runs `read` on the machine that sees the stores soonest.

        Stores in the host's memory are read without a launch, which would queue behind others.
        """
        ...

    def array(self, array: Any) -> Any:
        """Copy an array to the backend; the source may change afterwards."""
        ...

    def adopt(self, array: np.ndarray) -> Any:
        """Convert a NumPy array that nobody else uses, taking over its memory if possible."""
        ...

    def borrow(self, array: np.ndarray) -> Any:
        """Convert an array for launches that only read it; its memory is shared if they can."""
        ...

    def from_host_call(self, array: np.ndarray) -> Any:
        """Copy a host call's result to an array that a region takes as an argument."""
        ...

    def staging(self, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, Any] | None:
        """Return a host buffer and an array of the backend on the same memory, or None.

        The host may write to the buffer after a launch: results of the launch do not change.
        """
        ...

    def wait(self, array: Any) -> Any:
        """Block until the launch that computes an array is done; return the array."""
        ...

    def synchronize(self) -> None:
        """Block until all launches so far are done, whoever has their results."""
        ...

    def from_dlpack(self, array: Any) -> Any:
        """Wrap an array of another library without a copy (DLPack); it is never written to."""
        ...

    def host_view(self, array: Any) -> np.ndarray:
        """A short-lived view of an array in the host's memory: later launches may destroy it."""
        ...

    def host_operand(self, array: Any) -> np.ndarray:
        """The operand of a host call: a view that no launch destroys before the call returns."""
        ...

    def copy_to_host(self, array: Any) -> Any:
        """Copy an array to the host's memory, pinned if the device's copy engine needs that."""
        ...

    def copy_to_device(self, array: Any) -> Any:
        """Copy an array back to the device from the copy that `copy_to_host` made."""
        ...

    def numpy(self, array: Any) -> np.ndarray:
        """A NumPy array that later launches do not change."""
        ...

    def final_numpy(self, array: Any) -> np.ndarray:
        """Convert an array that no launch takes again to NumPy, without a copy if possible."""
        ...


class Mesh(Backend, Protocol):
    """A backend on several workers: each of its arrays is [workers, *shape on one worker]."""

    def array(self, array: Any) -> Any:
        """Copy the same array to every worker."""
        ...

    def spread(self, parts: Sequence[Any]) -> Any:
        """Join one part for each worker to an array [workers, ..]."""
        ...

    def parts(self, array: Any) -> Iterable[Any]:
        """The part of each worker of an array."""
        ...

    def copy(self, array: Any) -> Any:
        """Copy an array of the mesh."""
        ...


def mesh_of(backend: Backend) -> Mesh:
    """Return the backend of a program with shards, typed as the mesh that it is."""
    assert hasattr(backend, "spread")
    return cast(Mesh, backend)
