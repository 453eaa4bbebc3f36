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
from typing import cast

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

    def array(self, value: object) -> object:
        return self.inner.array(read(value))

    def staging(self, shape: tuple[int, ...], dtype: str) -> None:
        """None: launches may run beside the call that would write there."""

    def wait(self, array: object) -> object:
        return self.inner.wait(read(array))

    def host_operand(self, array: object) -> np.ndarray:
        return self.inner.host_operand(read(array))

    def numpy(self, array: object) -> np.ndarray:
        return self.inner.numpy(read(array))

    def final_numpy(self, array: object) -> np.ndarray:
        return self.inner.final_numpy(read(array))

    def reading(self, reading: Reading) -> Callable[..., list[LibraryArray]]:
        reader = self.inner.reading(reading)
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

    def array(self, value: object) -> object:
        return self.handles(self.inner.array(read(value)))

    def adopt(self, array: np.ndarray) -> object:
        return self.handles(self.inner.adopt(array))

    def lent(self, array: np.ndarray) -> object:
        return self.handles(self.inner.lent(array))

    def from_host_call(self, array: np.ndarray) -> object:
        return self.handles(self.inner.from_host_call(array))

    def from_dlpack(self, array: object) -> object:
        return self.handles(self.inner.from_dlpack(array))

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
