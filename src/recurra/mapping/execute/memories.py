"""The memories of a mapped program: a fast one, and a slow one beside it."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.execute.workload import Datum

PAGE = mmap.PAGESIZE  # addresses, sizes and places are multiples: direct I/O wants it
Bytes = NDArray[np.uint8]
Room = Any  # bytes in one piece that can be sliced: NumPy's, or a tensor of PyTorch's


def whole_pages(nbytes: int) -> int:
    """Rounded up to pages."""
    return -(-nbytes // PAGE) * PAGE


class SlowMemory(ABC):
    """`nbytes` that an instruction can read and write, but not compute on."""

    nbytes: int
    piece = 1 << 20  # bytes after which the copy engine looks what is due now
    log: dict[tuple[int, bool], list[float]] | None = None  # (bytes, written) → seconds

    def read(self, into: Room, at: int) -> None:
        """Fills a room, and is done when it returns; raises `RecurraError` if that fails."""
        self._timed(self._read, into, at, out=False)

    def write(self, of: Room, at: int) -> None:
        """Empties a room, and is done when it returns; raises `RecurraError` if that fails."""
        self._timed(self._write, of, at, out=True)

    def _timed(self, move: Callable[[Room, int], None], room: Room, at: int, *, out: bool) -> None:
        start = perf_counter()
        move(room, at)
        if self.log is not None:
            self.log.setdefault((len(room), out), []).append(perf_counter() - start)

    @abstractmethod
    def _read(self, into: Room, at: int) -> None: ...

    @abstractmethod
    def _write(self, of: Room, at: int) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Gives its room back."""


class Memory(Protocol):
    """A kind of fast memory; `Ram`, or `Device`."""

    def room(self, nbytes: int) -> Room:
        """Whole pages of it, all zeros."""
        ...

    def over(self, room: Room, tensor: Datum) -> Any:
        """The tensor's array, where this room begins: what instructions compute on."""
        ...

    def put(self, values: Bytes, room: Room) -> None:
        """Fills the beginning of a room."""
        ...

    def get(self, room: Room) -> Bytes:
        """A copy of it in RAM."""
        ...

    def slow(self, nbytes: int) -> SlowMemory:
        """The slow memory beside it; raises `RecurraError` if there is less."""
        ...
