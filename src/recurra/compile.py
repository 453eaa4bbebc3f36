"""The whole pipeline on one screen: equations to program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recurra.ir.graph import Graph
from recurra.ir.verify import verify
from recurra.lang.safety import check, known_bounds
from recurra.memory.plan import Plan, plan
from recurra.program.lower import CHUNK, Program, lower
from recurra.rewrite.accumulate import accumulate
from recurra.rewrite.granularity import (
    Axes,
    Decision,
    batch_dims,
    granularity,
    loops,
    output_axes,
)
from recurra.rewrite.keep import keep
from recurra.rewrite.lift import lift
from recurra.rewrite.simplify import contract, simplify
from recurra.rewrite.tile import tile, tiles
from recurra.schedule.levels import schedule
from recurra.schedule.tree import Schedule, phases

Pass = Callable[[Graph, Mapping[str, int]], Graph]


@dataclass
class Stages:
    """Every stage of one compilation, for people and for tests."""

    sizes: Mapping[str, int]
    graphs: dict[str, Graph] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)

    def run(self, name: str, f: Pass, before: Graph) -> Graph:
        """One pass: the graph verifies before and after."""
        start = time.perf_counter()
        after = verify(f(before, self.sizes))
        ms = (time.perf_counter() - start) * 1e3
        counts = {"before": len(before.nodes), "after": len(after.nodes)}
        self.rows.append({"name": name, **counts, "ms": round(ms, 2)})
        self.graphs[name] = after
        return after


@dataclass(frozen=True)
class Compiled:
    """A program with the stages it went through."""

    stages: Stages
    schedule: Schedule
    plan: Plan
    program: Program
    outputs: Mapping[str, str]  # of the source graph -> of the program
    axes: Mapping[str, Axes]  # of each output of the program


def compile_graph(
    graph: Graph,
    sizes: Mapping[str, int],
    *,
    batch: bool = True,
    last: bool | None = None,
    chunk: int = CHUNK,
) -> Compiled:
    """Graph to program, for bounds that are known.

    `batch`: dims that order nothing become axes, else every dim is a loop; `last`: those axes go last
    (None: decide); `chunk`: steps of the outermost loop per launch.

    Raises ShapeError, DomainError or ScheduleError, with a counter-example point and the user's line.
    """
    check(graph, sizes)
    sizes = known_bounds(graph, sizes)
    stages = Stages(sizes, {"trace": graph})
    g = stages.run("simplify", simplify, graph)
    g = stages.run("lift", lift, g)
    free = batch_dims(g) if batch else []
    split: list[str] = []
    decided: tuple[Decision, ...] = ()

    def stored(g: Graph, sizes: Mapping[str, int]) -> Graph:
        new, choices = keep(g, sizes, phases(schedule(g, sizes, frozenset(free))))
        stages.decisions += map(str, choices)
        return new

    def tiled(g: Graph, sizes: Mapping[str, int]) -> Graph:
        found = tiles(g, sizes, phases(schedule(g, sizes, frozenset(free))), loops(g), set(free))
        for t in found:
            g = tile(g, t)
            split.append(t.inner)
            stages.decisions.append(str(t))
        return g

    def batched(g: Graph, sizes: Mapping[str, int]) -> Graph:
        nonlocal decided
        new, decided = granularity(g, sizes, [*split, *free], last)
        stages.decisions += map(str, decided)
        return new

    g = stages.run("keep", stored, g)
    g = stages.run("tile", tiled, g)
    before = g
    g = stages.run("granularity", batched, g)
    g = stages.run("absorb", contract, g)
    g = stages.run("accumulate", accumulate, g)
    g = stages.run("contract", contract, g)
    where = output_axes(before, decided)
    s = schedule(g, sizes)
    p = plan(s, sizes)
    outputs = dict(zip(graph.outputs, g.outputs, strict=True))
    axes = {new: where[old] for new, old in zip(g.outputs, before.outputs, strict=True)}
    return Compiled(stages, s, p, lower(p, chunk), outputs, axes)
