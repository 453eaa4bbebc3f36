"""Order-free large-neighbourhood search: ruin storages of one time, place them in another order."""

from __future__ import annotations

import numpy as np

from recurra.mapping.arrange import Rounds
from recurra.mapping.flat import Flat, Ints
from recurra.mapping.keys import Floats, ordered
from recurra.mapping.search import Search, solver
from recurra.mapping.solvers.greedy import place_by_keys

BATCH, WIDEST = 64, 12  # rounds per call; storages per round
BLOCK = 16  # steps
HOT, COLD = 2e-4, 1e-6  # temperatures, of all that there is to gain


@solver
def solve(search: Search) -> None:
    """From the best of the simple keys."""
    best = place_by_keys(search)
    ruin_and_recreate(search, best, np.log(np.maximum(best, 1e-30)))


def ruin_and_recreate(
    search: Search, start: Floats, priority: Floats, until: float = 1.0, heat: float = HOT
) -> int:
    """Improves on the placement in the order of `start`, for this part of the budget; both [S], the
    larger the sooner. The reward of the best it found."""
    arranger = search.engine.arranger(search.flat)
    arranger.arrange(ordered(start))
    search.offer(arranger.best, arranger.solution)
    near = Neighbourhoods(search.flat)
    begun, end = search.spent, until * search.seconds
    while search.running(until):
        done = (search.spent - begun) / max(1e-9, end - begun)
        now = heat * (COLD / heat) ** done * search.scale
        arranger.improve(near.rounds(search.random, priority, now))
        search.offer(arranger.best, arranger.solution)
    return arranger.best


class Neighbourhoods:
    """Which storages are used at about the same time."""

    def __init__(self, flat: Flat) -> None:
        blocks = len(flat.supply) // BLOCK + 1
        pairs = np.unique(np.stack([flat.at // BLOCK, flat.storage]), axis=1)
        self.starts = np.searchsorted(pairs[0], np.arange(blocks + 1))
        self.members = pairs[1]
        self.storages = len(flat.grouped)

    def rounds(self, random: np.random.Generator, priority: Floats, heat: float) -> Rounds:
        """A batch of rounds; see `arrange.Rounds`."""
        block = random.integers(0, len(self.starts) - 1, BATCH)
        reach = random.integers(0, 3, BATCH)
        low = self.starts[np.maximum(block - reach, 0)]
        high = self.starts[np.minimum(block + reach + 1, len(self.starts) - 1)]
        some = low[:, None] + (random.random((BATCH, WIDEST)) * (high - low)[:, None]).astype(int)
        chosen = self.members[np.minimum(some, len(self.members) - 1)]
        noise = 1.5 * random.random((BATCH, 1)) * random.standard_normal((BATCH, WIDEST))
        order = np.argsort(-(priority[chosen] + noise), axis=1)
        chosen = np.take_along_axis(chosen, order, 1)
        wide = random.integers(2, WIDEST + 1, BATCH)
        left_out = np.argsort(random.random((BATCH, WIDEST)), axis=1) >= wide[:, None]
        chosen = np.where(left_out | (high <= low)[:, None], -1, chosen)
        return Rounds(
            order=chosen.astype(np.int64),
            seed=random.integers(0, 2**63, BATCH),
            skip=_sometimes(random, 0.15 * random.random(BATCH)),
            copy=_sometimes(random, np.full(BATCH, 0.5)),
            short=_sometimes(random, np.full(BATCH, 0.5)),
            bear=(-np.log(random.random(BATCH)) * heat).astype(np.int64),
        )


def _sometimes(random: np.random.Generator, chance: Floats) -> Ints:
    """A whim in four rounds of ten, as a share of 2^32."""
    return np.where(random.random(BATCH) < 0.4, chance * 2**32, 0).astype(np.int64)
