"""A greedy search, by measuring, for the inputs of a nest to pack and the levels to pack them at.

Measurements include the copies, which pay where rows are far apart in memory and are read often, as
in products of large matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile

from recurra.nest.loops import Nest, Pack
from recurra.nest.search import Evaluate


def packings(nest: Nest) -> Iterator[Nest]:
    """Yield the nest with one more input packed, at every level."""
    done = {x.tensor for x in nest.packs}
    for tensor in nest.problem.inputs:
        for level in range(len(nest.compute) if tensor.name not in done else 0):
            packs = (*nest.packs, Pack(tensor.name, level))
            yield replace(nest, packs=tuple(sorted(packs, key=lambda x: x.level)))


def search_packings(
    nest: Nest, evaluate: Evaluate, more: Callable[[], bool] = lambda: True
) -> Nest:
    """Pack inputs one by one as long as GFLOPS increase and `more` returns True."""
    best = evaluate(nest)
    while True:
        tried = takewhile(lambda _: more(), packings(nest))
        found = max(tried, key=evaluate, default=None)
        if found is None or evaluate(found) <= best:
            return nest
        nest, best = found, evaluate(found)
