"""Solvers that place everything once: by simple keys, by simple preferences, or like XLA.

`place_like_xla` is a pass like that of XLA's memory-space assignment: a baseline as in the paper.
Storages are sorted by memory-boundedness, then size, then life; each stays if it can, else is
evicted and prefetched. A storage that does not fit is placed again after everything has been
repacked, longest life first.

Differences from XLA: no limits of overlap, no cross-program or sliced prefetch, the game's rule of
one copy at a time, and offsets that consider the next use. XLA repacks for every storage that does
not fit, by default for none; here only fragmentation counts, repacking takes the lowest offsets,
not the smallest gaps, and the answer is the better one of the passes without and with it.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.game import PREFERENCES
from recurra.mapping.priority_keys import Floats, Summary, boundedness, keys, ordered
from recurra.mapping.search import Search

REPACKS = 10  # the most repackings in a pass


def place_greedily(search: Search) -> None:
    """Take the best of the four keys and the four preferences, in milliseconds."""
    place_by_keys(search)
    game = search.engine.game(search.flat)
    for k in range(len(PREFERENCES)):
        game.reset()
        search.offer(game.play(np.full(len(search.flat.size), k)), game.solution)


def place_by_keys(search: Search) -> Floats:
    """Offer one placement per key; return the best key, [S]."""
    arranger = search.engine.arranger(search.flat)

    def place(key: Floats) -> int:
        reward = arranger.arrange(ordered(key))
        search.offer(reward, arranger.current)
        return reward

    return max(keys(search.flat).values(), key=place)


def place_like_xla(search: Search) -> None:
    """Offer the placement of a pass, and of one that repacks."""
    s = Summary(search.flat)
    order = np.lexsort((-s.duration, -s.size, -boundedness(search.flat, s)))
    arranger = search.engine.arranger(search.flat)
    search.offer(arranger.arrange(order), arranger.current)
    search.offer(arranger.arrange_repacking(order, REPACKS), arranger.current)
