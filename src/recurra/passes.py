"""The passes by name, in the order in which compile runs them, for `recurra opt -p`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recurra.ir.graph import Graph
from recurra.rewrite.accumulate import accumulate
from recurra.rewrite.granularity import batch_dims, granularity, loops
from recurra.rewrite.keep import keep
from recurra.rewrite.lift import lift
from recurra.rewrite.pad import pad
from recurra.rewrite.simplify import contract, simplify
from recurra.rewrite.tile import tile, tiles
from recurra.schedule.levels import schedule
from recurra.schedule.tree import phases


def stored(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """keep, by the schedule that the graph would have."""
    batch = frozenset(batches(graph))
    return keep(graph, sizes, phases(schedule(graph, sizes, batch)))[0]


def tiled(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """tile, by the schedule that the graph would have."""
    batch = batches(graph)
    at = phases(schedule(graph, sizes, frozenset(batch)))
    for t in tiles(graph, sizes, at, loops(graph), set(batch)):
        graph = tile(graph, t)
    return graph


def axes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """granularity with its own choice of dims: what is inside a tile, then the batch."""
    return granularity(graph, sizes, [*inside_tiles(graph), *batches(graph)])[0]


def inside_tiles(graph: Graph) -> list[str]:
    """te, where t is split into tz and te."""
    dims = [r.dim for r in graph.dims]
    return [f"{d}e" for d in dims if {f"{d}z", f"{d}e"} <= set(dims)]


def batches(graph: Graph) -> list[str]:
    """The dims that order nothing, but not those of tiles: of them only the inside is an axis."""
    split = inside_tiles(graph)
    return [d for d in batch_dims(graph) if f"{d[:-1]}e" not in split]


PASSES: dict[str, Callable[[Graph, Mapping[str, int]], Graph]] = {
    "simplify": simplify,
    "lift": lift,
    "pad": pad,
    "keep": stored,
    "tile": tiled,
    "granularity": axes,
    "accumulate": accumulate,
    "contract": contract,
}
