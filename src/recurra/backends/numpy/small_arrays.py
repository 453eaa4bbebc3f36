"""Functions of NumPy whose own overhead is most of their time on small arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def padded(array: np.ndarray, widths: Sequence[tuple[int, int]], value: float) -> np.ndarray:
    """Pad an array with a constant; np.pad takes eight times as long."""
    y = np.full(
        [a + n + b for n, (a, b) in zip(array.shape, widths, strict=True)], value, array.dtype
    )
    y[tuple(slice(a, a + n) for n, (a, _) in zip(array.shape, widths, strict=True))] = array
    return y
