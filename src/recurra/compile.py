"""The whole pipeline on one screen: equations to program."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recurra.ir.graph import Graph
from recurra.ir.verify import verify
from recurra.memory.plan import Plan, plan
from recurra.program.lower import CHUNK, Program, lower
from recurra.rewrite.accumulate import accumulate
from recurra.rewrite.granularity import Axes, Decision, granularity, output_axes
from recurra.rewrite.keep import keep
from recurra.rewrite.lift import lift
from recurra.rewrite.simplify import simplify
from recurra.schedule.levels import schedule
from recurra.schedule.tree import Schedule, phases


@dataclass
class Stages:
    """Every stage of one compilation, for people and for tests."""

    graphs: dict[str, Graph] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)

    def add(self, name: str, before: Graph, after: Graph, started: float) -> Graph:
        ms = (time.perf_counter() - started) * 1e3
        self.rows.append({"name": name, "before": len(before.nodes), "after": len(after.nodes), "ms": ms})
        self.graphs[name] = after
        return after


@dataclass(frozen=True)
class Compiled:
    """A program with the stages it went through."""

    stages: Stages
    schedule: Schedule
    plan: Plan
    program: Program
    axes: Mapping[str, Axes]  # of each output, by its name in the source graph


def compile_graph(
    graph: Graph, sizes: Mapping[str, int], *, last: bool | None = None, chunk: int = CHUNK
) -> Compiled:
    """Graph to program, for bounds that are known."""
    stages = Stages({"trace": graph})

    def step(name: str, f: Any, g: Graph) -> Graph:
        started = time.perf_counter()
        return stages.add(name, g, verify(f(g, sizes)), started)

    g = step("simplify", simplify, graph)
    g = step("lift", lift, g)
    before = g
    decided: tuple[Decision, ...] = ()

    def axes(g: Graph, sizes: Mapping[str, int]) -> Graph:
        nonlocal decided
        new, decided = granularity(g, sizes, last)
        stages.decisions += map(str, decided)
        return new

    g = step("granularity", axes, g)
    g = step("simplify again", simplify, g)
    g = step("accumulate", accumulate, g)
    g = step("contract", simplify, g)

    def stored(g: Graph, sizes: Mapping[str, int]) -> Graph:
        new, choices = keep(g, sizes, phases(schedule(g, sizes)))
        stages.decisions += map(str, choices)
        return new

    g = step("keep", stored, g)
    s = schedule(g, sizes)
    p = plan(s, sizes)
    where = output_axes(before, decided)
    names = dict(zip(graph.outputs, g.outputs, strict=True))
    kept = {names[o]: where[b] for o, b in zip(graph.outputs, before.outputs, strict=True)}
    return Compiled(stages, s, p, lower(p, chunk), kept)
