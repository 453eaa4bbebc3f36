"""Order-free large-neighborhood search: remove nearby storages, and place them in another order.

A neighborhood has storages that are used at about the same time; now and then, all storages that
live while one of them does. The former refines a mapping; the latter exchanges a large storage for
smaller ones, or the other way round.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.order_free_placer import Rounds
from recurra.mapping.priority_keys import Floats, ordered
from recurra.mapping.search import Search
from recurra.mapping.solvers.one_pass import place_by_keys
from recurra.mapping.struct_of_arrays import FlatProblem, Ints

BATCH, WIDEST = 64, 12  # rounds per call; storages per round
BLOCK = 16  # steps per block of a neighborhood
WHOLE, MOST = 8, 128  # rounds per call over whole lives; storages per round
EVERY = 4  # of this many batches one is over whole lives
LOUD = 1.5  # the largest scale of the noise on priorities
HOT, COLD = 2e-4, 1e-6  # temperatures, as shares of all there is to gain


def search_from_keys(search: Search) -> None:
    """Ruin and recreate, from the best of the simple keys."""
    best = place_by_keys(search)
    ruin_and_recreate(search, best, np.log(np.maximum(best, 1e-30)))


def ruin_and_recreate(search: Search, start: Floats, priority: Floats, until: float = 1.0) -> None:
    """Improve the placement in the order of the keys `start` [S], in this share of the budget.

    Rounds place storages by `priority` [S] with noise; larger keys and priorities come first.
    """
    arranger = search.engine.arranger(search.flat)
    arranger.arrange(ordered(start))
    search.offer(arranger.best, arranger.solution)
    near, lives = Neighborhoods(search.flat), StorageOverlaps(search.flat)
    begun, end, k = search.spent, until * search.seconds, 0
    while search.running(until):
        done = (search.spent - begun) / max(1e-9, end - begun)
        temperature = HOT * (COLD / HOT) ** done * search.scale
        neighborhoods = near if k % EVERY else lives
        arranger.improve(neighborhoods.rounds(search.random, priority, temperature))
        search.offer(arranger.best, arranger.solution)
        k += 1
    search.offer_tie(arranger.best, arranger.solution)


class Neighborhoods:
    """Sets of storages that are used at about the same time."""

    def __init__(self, flat: FlatProblem) -> None:
        blocks = len(flat.supply) // BLOCK + 1
        pairs = np.unique(np.stack([flat.at // BLOCK, flat.storage]), axis=1)
        self.starts = np.searchsorted(pairs[0], np.arange(blocks + 1))
        self.members = pairs[1]
        self.storages = len(flat.grouped)

    def rounds(self, random: np.random.Generator, priority: Floats, heat: float) -> Rounds:
        """Draw a batch of rounds."""
        block = random.integers(0, len(self.starts) - 1, BATCH)
        reach = random.integers(0, 3, BATCH)
        low = self.starts[np.maximum(block - reach, 0)]
        high = self.starts[np.minimum(block + reach + 1, len(self.starts) - 1)]
        drawn = low[:, None] + (random.random((BATCH, WIDEST)) * (high - low)[:, None]).astype(int)
        chosen = self.members[np.minimum(drawn, len(self.members) - 1)]
        noise = LOUD * random.random((BATCH, 1)) * random.standard_normal((BATCH, WIDEST))
        order = np.argsort(-(priority[chosen] + noise), axis=1)
        chosen = np.take_along_axis(chosen, order, 1)
        wide = random.integers(2, WIDEST + 1, BATCH)
        left_out = np.argsort(random.random((BATCH, WIDEST)), axis=1) >= wide[:, None]
        chosen = np.where(left_out | (high <= low)[:, None], -1, chosen)
        return Rounds(
            order=chosen.astype(np.int64),
            seed=random.integers(0, 2**63, BATCH),
            skip=_draw_odds(random, 0.15 * random.random(BATCH)),
            copy=_draw_odds(random, np.full(BATCH, 0.5)),
            short=_draw_odds(random, np.full(BATCH, 0.5)),
            bear=_draw_losses(random, BATCH, heat),
        )


class StorageOverlaps:
    """Sets of the storages that are in use while one of them is."""

    def __init__(self, flat: FlatProblem) -> None:
        self.first = flat.at[flat.members[flat.member_at[:-1]]]
        self.last = flat.at[flat.members[flat.member_at[1:] - 1]]
        room = flat.size[flat.members[flat.member_at[:-1]]] * (self.last - self.first + 1.0)
        self.chance = np.cumsum(room) / room.sum()

    def rounds(self, random: np.random.Generator, priority: Floats, heat: float) -> Rounds:
        """Draw a batch of rounds: one storage, drawn by size × life, comes first or last."""
        drawn = self.chance.searchsorted(random.random(WHOLE))
        order = np.full((WHOLE, MOST), -1)
        for row, s in zip(order, drawn, strict=True):
            near = np.flatnonzero((self.first <= self.last[s]) & (self.last >= self.first[s]))
            near = random.permutation(near[near != s])[: MOST - 1]
            noise = LOUD * random.random() ** 2 * random.standard_normal(len(near))
            near = near[np.argsort(-(priority[near] + noise))]
            row[: len(near) + 1] = [s, *near] if random.random() < 0.5 else [*near, s]
        never = np.zeros(WHOLE, np.int64)
        seeds = random.integers(0, 2**63, WHOLE)
        return Rounds(order, seeds, never, never, never, _draw_losses(random, WHOLE, heat))


def _draw_losses(random: np.random.Generator, rounds: int, heat: float) -> Ints:
    """Draw the loss that each round may accept, in picoseconds."""
    return (-np.log(random.random(rounds)) * heat).astype(np.int64)


def _draw_odds(random: np.random.Generator, chance: Floats) -> Ints:
    """Draw odds of 2^32: `chance` in four rounds of ten, else 0."""
    return np.where(random.random(BATCH) < 0.4, chance * 2**32, 0).astype(np.int64)
