"""Arrays by where they begin: a backend that wants whole cache lines reads some where they lie."""

from __future__ import annotations

from math import prod

import numpy as np

LINE = 64  # bytes


def aligned(shape: tuple[int, ...], kind: np.dtype, behind: int = 0) -> np.ndarray:
    """Room that begins at a cache line, or some bytes `behind` one; nothing is in it yet."""
    size = kind.itemsize * prod(shape)
    room = np.empty(size + 2 * LINE, np.uint8)
    first = -room.ctypes.data % LINE + behind
    return room[first : first + size].view(kind).reshape(shape)


def misaligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at no cache line, so that every such backend has to copy it."""
    out = aligned(array.shape, array.dtype, LINE // 2)
    out[...] = array
    return out
