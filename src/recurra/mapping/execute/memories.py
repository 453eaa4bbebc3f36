"""The memories of a mapped program: a fast one, and a slow one beside it."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.execute.workload import TensorSpec

PAGE = mmap.PAGESIZE  # addresses and sizes are multiples of it, as direct I/O requires
Bytes = NDArray[np.uint8]
ByteBuffer = Any  # contiguous bytes that can be sliced: an array of NumPy or a tensor of PyTorch


def whole_pages(nbytes: int) -> int:
    """Round a size up to pages."""
    return -(-nbytes // PAGE) * PAGE


class SlowMemory(ABC):
    """Memory of `nbytes` that an instruction can read and write, but not compute on."""

    nbytes: int
    piece = 1 << 20  # bytes after which the copy engine looks for an earlier deadline
    log: dict[tuple[int, bool], list[float]] | None = None  # (bytes, written) → seconds

    def read(self, into: ByteBuffer, at: int) -> None:
        """Fill a block from an address, and wait for it; raises `RecurraError` if that fails."""
        self._timed(self._read, into, at, out=False)

    def write(self, of: ByteBuffer, at: int) -> None:
        """Write a block to an address, and wait for it; raises `RecurraError` if that fails."""
        self._timed(self._write, of, at, out=True)

    def _timed(
        self, move: Callable[[ByteBuffer, int], None], block: ByteBuffer, at: int, *, out: bool
    ) -> None:
        start = perf_counter()
        move(block, at)
        if self.log is not None:
            self.log.setdefault((len(block), out), []).append(perf_counter() - start)

    @abstractmethod
    def _read(self, into: ByteBuffer, at: int) -> None: ...

    @abstractmethod
    def _write(self, of: ByteBuffer, at: int) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Free the memory."""


class Memory(Protocol):
    """A kind of fast memory: `Ram` or `Device`."""

    def allocate(self, nbytes: int) -> ByteBuffer:
        """Allocate whole pages, filled with zeros."""

    def view_as(self, block: ByteBuffer, tensor: TensorSpec) -> Any:
        """Return the beginning of a block as the tensor's array, for instructions to compute on."""

    def put(self, values: Bytes, block: ByteBuffer) -> None:
        """Fill the beginning of a block, and wait for it."""

    def get(self, block: ByteBuffer) -> Bytes:
        """Return a copy of a block in RAM."""
        ...

    def slow(self, nbytes: int) -> SlowMemory:
        """Allocate the slow memory beside it; raises `RecurraError` if there is less."""
        ...
