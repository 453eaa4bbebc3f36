"""Element types of nests, as NumPy has them."""

from __future__ import annotations

from contextlib import suppress

import ml_dtypes
import numpy as np

DTYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
NAMES = {dtype.name: name for name, dtype in DTYPES.items()}


def named(dtype: object) -> str:
    """Return the name in nests, such as f32, of "float32" or torch.float32.

    Types that nests do not have keep their names.
    """
    word = str(dtype).removeprefix("torch.")
    with suppress(TypeError):
        word = np.dtype(dtype).name if isinstance(dtype, (type, np.dtype)) else word
    return NAMES.get(word, word)
