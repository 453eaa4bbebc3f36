"""Medians of measured times, shrunk toward expected times by the noise of the samples.

A solver would choose the subsets of buffers that were measured too fast, so the differences from
the expected times are multiplied by the share of their square that noise does not explain (James
and Stein).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MEDIAN = np.pi / 2  # variance of a median over that of a mean
Floats = NDArray[np.float64]


def shrunk_medians(samples: Sequence[Floats], summed: Floats) -> Floats:
    """Return [subsets, 2]: shrunk medians of [samples, 2] of each subset; `summed`: expected."""
    medians = np.array([np.median(x, axis=0) for x in samples])
    variances = [x.var(axis=0, ddof=1) / len(x) for x in samples if len(x) > 1]
    if not variances:
        return medians
    noise = MEDIAN * np.mean(variances, axis=0)
    columns = zip(medians.T, summed.T, noise, strict=True)
    return np.stack([shrink_by_noise(*x) for x in columns], axis=1)


def shrink_by_noise(seconds: Floats, expected: Floats, noise: float) -> Floats:
    """Shrink the differences of seconds [2^units] from expected ones; `noise`: their variance.

    The sum over units that fits the differences best and its residual are shrunk separately.
    """
    if not noise:
        return seconds
    count = len(seconds).bit_length() - 1
    sums = np.array([[1, *(m >> k & 1 for k in range(count))] for m in range(1 << count)], float)
    weights = np.linalg.lstsq(sums, seconds - expected, rcond=None)[0]
    fitted = np.asarray(sums @ weights, np.float64)
    residual = seconds - expected - fitted
    shrunk = _shrink(fitted, noise * (count + 1))
    shrunk += _shrink(residual, noise * (len(residual) - count - 1))
    return np.maximum(0, expected + shrunk)


def _shrink(difference: Floats, noise: float) -> Floats:
    return difference * max(0.0, 1 - noise / max(float(difference @ difference), 1e-30))
