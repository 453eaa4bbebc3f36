"""The arrays of a run whose launches go through a window, there or to come.

Each has addresses of its own, by which the window knows it: a variable those of the launch that
makes it, a store as many as it has bytes. What a launch makes that runs at once nobody waits for:
that is `there`. A backend of handles is any other one, whose arrays wait.
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
from recurra.ir.arrays import LibraryArray
from recurra.window import Executor, Segment


class ToCome(ABC):
    """An array that is there, or will be; whoever reads it waits."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> LibraryArray:
        """The array, when it is there."""

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
    """Wait for values that are still being computed, and return them."""
    if isinstance(value, tuple | list):
        return type(value)(map(read, value))
    return value.read() if isinstance(value, ToCome) else value


@dataclass
class Waiting:
    """A backend that waits for arrays to come. Everything else it has of `inner`."""

    inner: Backend

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    @property
    def backend(self) -> Backend:
        """Itself, with what it has of `inner`."""
        return cast(Backend, self)

    def array(self, value: object) -> object:
        return self.inner.array(read(value))

    def staging(self, shape: tuple[int, ...], dtype: str) -> None:
        """Launches may run beside the call that would write there."""

    def wait(self, array: object) -> object:
        return self.inner.wait(read(array))

    def operand(self, array: object) -> np.ndarray:
        return self.inner.operand(read(array))

    def numpy(self, array: object) -> np.ndarray:
        return self.inner.numpy(read(array))

    def result(self, array: object) -> np.ndarray:
        return self.inner.result(read(array))

    def reading(self, reading: Reading) -> Callable[..., list[LibraryArray]]:
        found = self.inner.reading(reading)
        return lambda times, *stores: found(times, *map(read, stores))


@dataclass(eq=False, slots=True)
class Handle(ToCome):
    """An array of a run, there or to come; whoever reads it waits. `once`: what is there stays."""

    run: Executor
    segment: Segment
    value: LibraryArray | None = None
    once: bool = False

    def read(self) -> LibraryArray:
        if not self.once or self.value is None:
            self.run.wait(self.segment)
        assert self.value is not None
        return self.value


_runs = count()  # each has addresses of its own: an executor may outlive it, and what failed there


@dataclass
class Handles(Waiting):
    """A backend whose arrays are handles."""

    run: Executor
    free: int = field(default_factory=lambda: (next(_runs) % 2**16) << 48)  # the first
    there: Segment = field(init=False)  # of handles whose arrays are there from the beginning

    def __post_init__(self) -> None:
        self.there = self.fresh(1)

    def fresh(self, size: int) -> Segment:
        """Addresses that nothing else has."""
        at, self.free = self.free, self.free + size
        return Segment(at, size)

    def array(self, value: object) -> object:
        return self.handles(self.inner.array(read(value)))

    def made(self, array: np.ndarray) -> object:
        return self.handles(self.inner.made(array))

    def lent(self, array: np.ndarray) -> object:
        return self.handles(self.inner.lent(array))

    def given(self, array: np.ndarray) -> object:
        return self.handles(self.inner.given(array))

    def borrow(self, array: object) -> object:
        return self.handles(self.inner.borrow(array))

    def handles(self, x: LibraryArray | tuple[LibraryArray, ...]) -> object:
        """The results of a host call are a tuple."""
        if isinstance(x, tuple):
            return tuple(map(self.handles, x))
        return Handle(self.run, self.fresh(int(x.nbytes)), x)


def among(value: object) -> list[Handle]:
    """The handles in what a launch is given."""
    if isinstance(value, Handle):
        return [value]
    return [h for y in value for h in among(y)] if isinstance(value, tuple) else []


def there(value: object) -> object:
    """Replace handles by the values that they stand for."""
    if isinstance(value, tuple):
        return tuple(map(there, value))
    return value.value if isinstance(value, Handle) else value
