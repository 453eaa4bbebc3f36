"""What several cases say together: geometric means of ratios, and how time grows with a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import Case, Row
from benchmarks.ppo.contest import Contest
from benchmarks.ppo.workload import Work

DOUBLING = 2.2  # the budget of time when T or B doubles


def together(
    contests: Sequence[Contest], name: str, *, resamples: int = 2000, seed: int = 0
) -> Row:
    """The geometric mean of the ratios of all cases, each the median of its pairs."""
    pairs = [(c.ours, c.theirs[name]) for c in contests if name in c.theirs]
    ratios = [theirs / ours for ours, theirs in pairs]
    rng = np.random.default_rng(seed)
    drawn = [np.median(rng.choice(r, (resamples, len(r))), axis=1) for r in ratios]
    low, high = np.quantile(np.exp(np.mean(np.log(drawn), axis=0)), (0.025, 0.975))
    means = [_geometric([np.median(x) for x in column]) for column in zip(*pairs, strict=True)]
    middle = _geometric([np.median(r) for r in ratios])
    case = str(Case(f"geometric mean of {len(pairs)} cases"))
    return Row(case, "iteration_ms", means[0], name, means[1], middle, (float(low), float(high)),
               None, "none")  # fmt: skip


def _geometric(values: Sequence[Any]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def per_doubling(contests: Sequence[Contest], size: str) -> Row:
    """How many times as long an iteration takes when a size doubles: a line through logarithms."""
    usual = Work()
    others = [k for k in ("T", "B", "width", "depth") if k != size]
    of = [c for c in contests if all(getattr(c.work, k) == getattr(usual, k) for k in others)]
    sizes = np.log2([getattr(c.work, size) for c in of])
    slope = np.polyfit(sizes, np.log2([np.median(c.ours) for c in of]), 1)[0]
    ours = float(2**slope)
    ratio = DOUBLING / ours
    where = ", ".join(str(getattr(c.work, size)) for c in sorted(of, key=_size(size)))
    return Row(f"{size} in {where} 1T", "times_per_doubling", ours, "budget", DOUBLING, ratio,
               (ratio, ratio), None, "none")  # fmt: skip


def _size(name: str) -> Callable[[Contest], Any]:
    return lambda c: getattr(c.work, name)
