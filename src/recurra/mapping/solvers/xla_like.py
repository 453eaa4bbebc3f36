"""A pass like that of XLA's memory-space assignment: a baseline as in the paper.

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

from recurra.mapping.priority_keys import Summary, boundedness
from recurra.mapping.search import Search, solver

REPACKS = 10  # the most repackings in a pass


@solver
def solve(search: Search) -> None:
    """Run two passes, which takes milliseconds."""
    place_like_xla(search)


def place_like_xla(search: Search) -> None:
    """Offer the placement of a pass, and of one that repacks."""
    s = Summary(search.flat)
    order = np.lexsort((-s.duration, -s.size, -boundedness(search.flat, s)))
    arranger = search.engine.arranger(search.flat)
    search.offer(arranger.arrange(order), arranger.current)
    search.offer(arranger.arrange_repacking(order, REPACKS), arranger.current)
