"""Arrays that a backend which wants whole cache lines reads where they lie."""

from __future__ import annotations

from math import prod

import numpy as np

LINE = 64  # bytes


def aligned(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Room that begins at a cache line; nothing is in it yet."""
    size = kind.itemsize * prod(shape)
    room = np.empty(size + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    return room[first : first + size].view(kind).reshape(shape)
