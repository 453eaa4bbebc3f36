"""Arrays at aligned addresses, which some backends can read without a copy."""

from __future__ import annotations

from math import prod

import numpy as np

LINE = 64  # bytes of a cache line


def aligned(shape: tuple[int, ...], kind: np.dtype, offset: int = 0) -> np.ndarray:
    """Allocate an uninitialized array that begins at a cache line, or `offset` bytes behind one."""
    size = kind.itemsize * prod(shape)
    block = np.empty(size + 2 * LINE, np.uint8)
    first = -block.ctypes.data % LINE + offset
    return block[first : first + size].view(kind).reshape(shape)


def misaligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that does not begin at a cache line, so that every backend copies it."""
    out = aligned(array.shape, array.dtype, LINE // 2)
    out[...] = array
    return out
