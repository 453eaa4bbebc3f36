"""Choose after how many steps a loop polls its device whether any row goes on.

    going(alive, more, every=0)   →   going(alive, more, every=8)

A poll costs p steps (`poll_steps`), and polling every k steps runs (k - 1) / 2 steps past the end.
For a loop of n steps, half of the most there may be, the cost p · n / k + k / 2 is least at
k = √(2 · p · n).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from recurra.cost.thresholds import MAX_POLL_INTERVAL
from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph, Node
from recurra.ops.elementwise import Going
from recurra.transforms.compile_context import CompileContext, Pass


def _open_polls(graph: Graph) -> list[tuple[Node, Going]]:
    """The equations that poll whether rows go on and have no interval yet, with their ops."""
    nodes = graph.nodes.values()
    return [(n, n.op) for n in nodes if isinstance(n.op, Going) and not n.op.every]


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether loops poll whether rows end, and polling costs anything."""
    return cx.target.poll_steps > 0 and bool(_open_polls(graph))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Decide how often loops poll their device whether any row goes on."""
    poll_steps = cx.target.poll_steps
    for n, op in _open_polls(graph):
        dim = op.times[0]
        points = evaluate(n.domain[dim].hi, cx.sizes)
        every = max(1, min(MAX_POLL_INTERVAL, isqrt(round(poll_steps * points))))
        graph = graph.update([replace(n, op=replace(op, every=every))])
        cx.remark(
            f"{dim}: ends asked for every {every} steps (to ask costs {poll_steps:g} of them)"
        )
    return graph


POLL_INTERVAL = Pass("poll_interval", run, applies)
