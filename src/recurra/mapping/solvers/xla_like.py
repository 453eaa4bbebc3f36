"""A pass like that of XLA's memory-space assignment: the baseline of the paper's kind.

Storages by memory-boundedness, then size, then life; each stays where it can, else is evicted and
prefetched. What finds no room is placed again after everything has been repacked, longest first.

Not XLA: no limits of overlap, no cross-program or sliced prefetch, the game's rule of one copy at a
time, and offsets that look to the next use. XLA repacks for all that finds no room, by default for
nothing; here only what lacks room in one piece counts, repacking takes lowest offsets, not smallest
gaps, and of the passes without it and with it the better one is the answer.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.priority_keys import Summary, boundedness
from recurra.mapping.search import Search, solver

REPACKS = 10  # at most


@solver
def solve(search: Search) -> None:
    """Two passes; takes milliseconds."""
    place_like_xla(search)


def place_like_xla(search: Search) -> None:
    """Offers the placement of a pass, and of one that repacks."""
    s = Summary(search.flat)
    order = np.lexsort((-s.duration, -s.size, -boundedness(search.flat, s)))
    arranger = search.engine.arranger(search.flat)
    search.offer(arranger.arrange(order), arranger.current)
    search.offer(arranger.arrange_repacking(order, REPACKS), arranger.current)
