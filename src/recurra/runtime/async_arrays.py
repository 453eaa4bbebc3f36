"""The arrays of a run whose launches go through a window, computed or pending.

Each array has addresses of its own, by which the window knows it: a variable those of the launch
that makes it, a store as many as it has bytes. Nobody waits for the results of a launch that runs
at once: their segment is `ready`. A backend of handles behaves like any other, but its arrays wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from recurra.backends.protocol import Backend, Reading
from recurra.ir.array_protocols import LibraryArray
from recurra.window import Executor, Segment


class PendingArray(ABC):
    """An array that is computed, or will be; whoever reads it waits."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> LibraryArray:
        """Wait for the array and return it."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.read().shape

    @property
    def dtype(self) -> object:
        return self.read().dtype

    @property
    def nbytes(self) -> int:
        return self.read().nbytes

    def __getitem__(self, key: object) -> LibraryArray:
        return self.read()[key]

    def __iter__(self) -> Iterator[LibraryArray]:
        return iter(self.read())

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(), dtype=dtype)


def read(value: object) -> object:
    """Wait for pending arrays, also in tuples and lists, and return their values."""
    if isinstance(value, tuple | list):
        return type(value)(map(read, value))
    return value.read() if isinstance(value, PendingArray) else value


def on_values(operation: str) -> Callable[[WaitingBackend, object], Any]:
    """Return an operation of the inner backend on an array, which is waited for."""

    def run(backend: WaitingBackend, array: object) -> object:
        return getattr(backend.inner, operation)(read(array))

    return run


@dataclass
class WaitingBackend:
    """A backend that waits for pending arrays; everything else is that of `inner`."""

    inner: Backend

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    @property
    def backend(self) -> Backend:
        """The same object, typed as the backend that `__getattr__` makes it."""
        return cast(Backend, self)

    array = on_values("array")
    wait = on_values("wait")
    host_operand = on_values("host_operand")
    numpy = on_values("numpy")
    final_numpy = on_values("final_numpy")

    def staging(self, shape: tuple[int, ...], dtype: str) -> None:
        """None: launches may run beside the call that would write there."""

    def reader(self, reading: Reading) -> Callable[..., list[LibraryArray]]:
        reader = self.inner.reader(reading)
        return lambda times, *stores: reader(times, *map(read, stores))


@dataclass(eq=False, slots=True)
class Handle(PendingArray):
    """An array of a run, computed or pending; whoever reads it waits. `once`: it never changes."""

    run: Executor
    segment: Segment
    value: LibraryArray | None = None
    once: bool = False

    def read(self) -> LibraryArray:
        if not self.once or self.value is None:
            self.run.wait(self.segment)
        assert self.value is not None
        return self.value


_runs = count()  # runs have different addresses: an executor, and its failures, may outlive a run


def in_handles(operation: str) -> Callable[[Handles, object], object]:
    """Return an operation of the inner backend that wraps its result in handles."""
    run = on_values(operation)
    return lambda backend, array: backend.handles(run(backend, array))


@dataclass
class Handles(WaitingBackend):
    """A backend whose arrays are handles."""

    run: Executor
    free: int = field(default_factory=lambda: (next(_runs) % 2**16) << 48)  # the first free address
    ready: Segment = field(init=False)  # of handles whose arrays are computed from the beginning

    def __post_init__(self) -> None:
        self.ready = self.fresh(1)

    def fresh(self, size: int) -> Segment:
        """Reserve addresses that nothing else has."""
        at, self.free = self.free, self.free + size
        return Segment(at, size)

    array = in_handles("array")
    adopt = in_handles("adopt")
    lent = in_handles("borrow")
    from_host_call = in_handles("from_host_call")
    from_dlpack = in_handles("from_dlpack")

    def handles(self, x: LibraryArray | tuple[LibraryArray, ...]) -> object:
        """Wrap an array in a handle; of the results of a host call, each."""
        if isinstance(x, tuple):
            return tuple(map(self.handles, x))
        return Handle(self.run, self.fresh(int(x.nbytes)), x)


def handles_in(value: object) -> list[Handle]:
    """The handles in an argument of a launch."""
    if isinstance(value, Handle):
        return [value]
    return [h for y in value for h in handles_in(y)] if isinstance(value, tuple) else []


def value_of(value: object) -> object:
    """The value of a computed handle; any other value is returned as it is."""
    if isinstance(value, tuple):
        return tuple(map(value_of, value))
    return value.value if isinstance(value, Handle) else value
