"""Samples of times, by subset of an instruction's buffers → medians of which errors count less."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MEDIAN = np.pi / 2  # variance of a median over that of a mean
Floats = NDArray[np.float64]


def middles(samples: Sequence[Floats], summed: Floats) -> Floats:
    """[subsets, 2] from [samples, 2] of each subset: medians, of which errors count less."""
    medians = np.array([np.median(found, axis=0) for found in samples])
    several = [found.var(axis=0, ddof=1) / len(found) for found in samples if len(found) > 1]
    if not several:
        return medians
    noise = MEDIAN * np.mean(several, axis=0)
    columns = zip(medians.T, summed.T, noise, strict=True)
    return np.stack([more_than_chance(*x) for x in columns], axis=1)


def more_than_chance(seconds: Floats, expected: Floats, noise: float) -> Floats:
    """Shrink measured differences to what errors do not explain; `noise` is a subset's variance.

    How they differ from what is expected counts by the part of it that errors do not explain, as
    James and Stein have it, since a solver would choose the subsets that were measured too fast:
    once for the sum over units that fits the difference best, and once for what that leaves over.
    """
    if not noise:
        return seconds
    count = len(seconds).bit_length() - 1
    sums = np.array([[1, *(m >> k & 1 for k in range(count))] for m in range(1 << count)], float)
    weights = np.linalg.lstsq(sums, seconds - expected, rcond=None)[0]
    fitted = np.asarray(sums @ weights, np.float64)
    left = seconds - expected - fitted
    kept = _less_chance(fitted, noise * (count + 1)) + _less_chance(
        left, noise * (len(left) - count - 1)
    )
    return np.maximum(0, expected + kept)


def _less_chance(found: Floats, by_chance: float) -> Floats:
    """Less the part of its square that is chance."""
    return found * max(0.0, 1 - by_chance / max(float(found @ found), 1e-30))
