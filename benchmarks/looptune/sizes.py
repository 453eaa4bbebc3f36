"""How much the figures measure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

EXTENTS = range(64, 257, 16)  # the paper's: 13 per dim, 2197 matrix products
SEARCHES = ("greedy1", "greedy2", "beam2dfs", "beam4dfs", "beam2bfs", "beam4bfs", "random")


@dataclass(frozen=True)
class Sizes:
    """Of the five learners' sweep and runs, of the searches, and of what is beside libraries."""

    tables: int
    """A fifth is not learned from: half of it chooses, the other half is drawn"""
    depth: int
    trials: int
    """Settings that a learner's sweep tries"""
    sweep: int
    """Actions taken in each trial"""
    run: int
    """Actions taken in the run that is drawn"""
    problems: int
    """Matrix products of figures 8 to 10, drawn at random from those not learned from"""
    limit: float
    """Seconds that a search may take"""
    deep: int
    """Matrix products of figure 11, each searched anew for every number of actions"""
    deep_limit: float
    actions: tuple[int, ...]
    pairs: int


FULL = Sizes(40, 8, 6, 100_000, 1_000_000, 30, 10.0, 2, 5.0, tuple(range(1, 11)), 20)
QUICK = Sizes(12, 8, 2, 10_000, 100_000, 8, 1.0, 1, 0.5, (1, 2, 4, 6, 8, 10), 6)


def problems(count: int, taken: set[str]) -> list[tuple[int, int, int]]:
    """Sizes drawn at random; none that is taken, "64x96x128"."""
    every = [(m, k, n) for m in EXTENTS for k in EXTENTS for n in EXTENTS]
    free = [s for s in every if "x".join(map(str, s)) not in taken]
    return Random(2022).sample(free, count)
