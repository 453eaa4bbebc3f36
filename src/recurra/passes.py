"""The passes by name, in the order in which compile runs them, for `recurra opt -p`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recurra.agreement import as_written
from recurra.ir.graph import Graph
from recurra.rewrite.accumulate import accumulate
from recurra.rewrite.attention import attention
from recurra.rewrite.beside import side_by_side
from recurra.rewrite.granularity import (
    Decision,
    batches,
    granularity,
    inside_tiles,
    loops,
    more_axes,
)
from recurra.rewrite.keep import keep
from recurra.rewrite.lift import lift
from recurra.rewrite.pad import pad
from recurra.rewrite.prefix import prefix
from recurra.rewrite.rounds import rounds
from recurra.rewrite.simplify import contract, simplify
from recurra.rewrite.single import fewer_dims, single
from recurra.rewrite.split import split
from recurra.rewrite.strip import strip
from recurra.rewrite.tile import tile, tiles
from recurra.rewrite.unshuffle import unshuffle
from recurra.rewrite.wavefront import wavefront
from recurra.schedule.levels import schedule
from recurra.schedule.tree import phases
from recurra.trace import Stages


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


def beside(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Products of one operand as one, by the schedule that the graph has."""
    order = schedule(graph, sizes)
    return side_by_side(graph, sizes, phases(order), order.places())[0]


def axes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """granularity with its own choice of dims: what is inside a tile, then the batch."""
    return decided(graph, sizes)[0]


def decided(graph: Graph, sizes: Mapping[str, int]) -> tuple[Graph, tuple[Decision, ...]]:
    return granularity(graph, sizes, [*inside_tiles(graph), *batches(graph)])


def without_single(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """single; each output keeps an axis of one element for a dim that it loses."""
    return single(graph, sizes)[0]


PASSES: dict[str, Callable[[Graph, Mapping[str, int]], Graph]] = {
    "single": without_single,
    "simplify": simplify,
    "unshuffle": unshuffle,
    "rounds": rounds,
    "lift": lift,
    "split": split,
    "prefix": prefix,
    "attention": attention,
    "strip": strip,
    "pad": pad,
    "wavefront": wavefront,
    "keep": stored,
    "tile": tiled,
    "granularity": axes,
    "accumulate": accumulate,
    "contract": contract,
    "beside": beside,
}


def run(name: str, graph: Graph, stages: Stages) -> Graph:
    """One pass by name, logged, dumped and checked as the environment asks."""

    def batched(graph: Graph, sizes: Mapping[str, int]) -> Graph:
        new, decisions = decided(graph, sizes)
        stages.decisions += map(str, decisions)
        stages.axes = more_axes(stages.axes or as_written(graph), graph, decisions)
        return new

    def fewer(graph: Graph, sizes: Mapping[str, int]) -> Graph:
        new, axes = single(graph, sizes)
        stages.axes = fewer_dims(stages.axes or as_written(graph), axes)
        return new

    return stages.run(
        name, {"granularity": batched, "single": fewer}.get(name, PASSES[name]), graph
    )
