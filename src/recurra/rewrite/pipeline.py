"""The passes by name, in the order in which compile runs them, for `recurra opt -p`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recurra.ir.graph import Graph
from recurra.rewrite.accumulate import accumulate
from recurra.rewrite.granularity import batch_dims, granularity
from recurra.rewrite.lift import lift
from recurra.rewrite.pad import pad
from recurra.rewrite.simplify import contract, simplify


def axes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """granularity with its own choice of dims."""
    return granularity(graph, sizes, batch_dims(graph))[0]


PASSES: dict[str, Callable[[Graph, Mapping[str, int]], Graph]] = {
    "simplify": simplify,
    "lift": lift,
    "pad": pad,
    "granularity": axes,
    "accumulate": accumulate,
    "contract": contract,
}
