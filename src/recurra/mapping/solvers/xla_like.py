"""A pass like that of XLA's memory-space assignment: the baseline of the paper's kind.

Storages by memory-boundedness, then size, then life; each stays where it can, else is evicted and
prefetched. Not XLA: no limits of overlap, no cross-program or sliced prefetch, no repacking (XLA's
default is none, too), the game's rule of one copy at a time, and offsets that look to the next use.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.keys import Summary, boundedness
from recurra.mapping.search import Search, solver

REPACKS = 10  # at most


@solver
def solve(search: Search) -> None:
    """One pass; takes milliseconds."""
    place_like_xla(search)


def place_like_xla(search: Search) -> None:
    """Offers the placement of that one pass."""
    s = Summary(search.flat)
    order = np.lexsort((-s.duration, -s.size, -boundedness(search.flat, s)))
    arranger = search.engine.arranger(search.flat)
    search.offer(arranger.arrange(order), arranger.current)
    search.offer(arranger.arrange_repacking(order, REPACKS), arranger.current)
