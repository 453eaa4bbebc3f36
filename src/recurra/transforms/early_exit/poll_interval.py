"""After how many steps a loop asks its device whether any row goes on.

    going(alive, more, every=0)   →   going(alive, more, every=8)

To ask costs `asking` steps, and to ask every k steps runs (k - 1) / 2 steps past the end: for loops
of n steps, half of the most there may be, asking · n / k + k / 2 is least at k = √(2 · asking · n).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

from recurra.cost.thresholds import MAX_POLL_INTERVAL
from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph
from recurra.ops.elementwise import Going
from recurra.transforms.compile_context import CompileContext, Pass


def open_questions(graph: Graph) -> list[str]:
    """The names of equations that ask whether rows go on, without an interval yet."""
    return [n.name for n in graph.nodes.values() if isinstance(n.op, Going) and not n.op.every]


def choose_intervals(
    graph: Graph, sizes: Mapping[str, int], asking: float
) -> tuple[Graph, list[str]]:
    """The graph with every question at its cheapest, and why."""
    why: list[str] = []
    for name in open_questions(graph):
        n = graph[name]
        assert isinstance(n.op, Going)
        (dim, *_) = n.op.times
        points = evaluate(n.domain[dim].hi, sizes)
        every = max(1, min(MAX_POLL_INTERVAL, isqrt(round(asking * points))))
        graph = graph.update([replace(n, op=replace(n.op, every=every))])
        why.append(f"{dim}: ends asked for every {every} steps (to ask costs {asking:g} of them)")
    return graph, why


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether loops ask where rows end, and that costs anything."""
    return cx.target.asking > 0 and bool(open_questions(graph))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Decide how often loops ask their device whether any row goes on."""
    new, why = choose_intervals(graph, cx.sizes, cx.target.asking)
    cx.remark(*why)
    return new


POLL_INTERVAL = Pass("poll_interval", run, applies)
