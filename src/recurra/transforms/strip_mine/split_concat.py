"""Reduce the parts of a concatenation one by one, so that they need not be one axis.

    p = softmax(concat(a, b))                  m = maximum(max(a), max(b))
    y = sum(cut(p, 0, n)) + sum(cut(p, n, ..))  →  e = exp(a - m);  f = exp(b - m);  ..

Ranges side by side, such as attention sinks and a window, can then be tiled on their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from recurra.ir.expr import lin, symbols
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Elementwise, Op, Reduction
from recurra.ops.movement import Concat, Cut
from recurra.ops.softmax import Softmax
from recurra.transforms.recurrences.split_softmax import split_softmax
from recurra.transforms.rewriter.pattern_rewriter import apply, rule
from recurra.transforms.rewriter.rewriting import Rewriting


def split_concats(graph: Graph, dim: str, sizes: Mapping[str, int]) -> Graph:
    """Return the graph without concatenations of ranges that vary with `dim`, where possible."""

    def varies(node: Node, axis: int) -> bool:
        return dim in symbols(node.tensor.shape[axis])

    joins = (n for n in graph.nodes.values() if isinstance(n.op, Concat) and dim in n.domain)
    if not any(varies(n, n.op.axis) for n in joins if isinstance(n.op, Concat)):
        return graph
    softmaxes = {
        n.name for n in graph.nodes.values() if isinstance(n.op, Softmax) and varies(n, n.op.axis)
    }
    rules = (split_softmax(softmaxes), reduce_each, compute_each, cut_from)
    return apply(graph, rules, sizes)


@rule(Reduction)
def reduce_each(node: Node, graph: Rewriting) -> Node | None:
    """fold (a ++ b) → fold a ∘ fold b"""
    assert isinstance(node.op, Reduction)
    join = graph.producer(node.args[0], Concat)
    if join is None or node.op.monoid is None or node.op.axes != (join.op.axis,):  # pyright: ignore[reportAttributeAccessIssue]
        return None
    if len(join.args) == 1:
        return replace(node, args=join.args)
    *parts, last = (graph.emit(node.op, (a,), node.domain, node.op.name) for a in join.args)
    op = Op.registry[node.op.monoid]()
    first = reduce(lambda x, y: graph.emit(op, (x, y), node.domain, node.op.name), parts)
    return replace(node, op=op, args=(first, last))


@rule(Elementwise)
def compute_each(node: Node, graph: Rewriting) -> Node | None:
    """f(a ++ b, c) → f(a, c) ++ f(b, c), c without the axis"""
    assert isinstance(node.op, Elementwise)
    joins = [
        (k, j) for k, a in enumerate(node.args) if (j := graph.producer(a, Concat)) is not None
    ]
    if len(joins) != 1:
        return None
    ((k, join),) = joins
    ins, out = graph.labels(node)
    assert isinstance(join.op, Concat)
    letter = ins[k][join.op.axis]
    if letter not in out or any(letter in s for j, s in enumerate(ins) if j != k):
        return None
    parts = [
        graph.emit(node.op, node.with_operand(k, part).args, node.domain, node.name)
        for part in join.args
    ]
    return replace(node, op=Concat(axis=out.index(letter)), args=tuple(parts))


@rule(Cut)
def cut_from(node: Node, graph: Rewriting) -> Ref | None:
    """cut a of a ++ b → a"""
    assert isinstance(node.op, Cut)
    join = graph.producer(node.args[0], Concat)
    if join is None or join.op.axis != node.op.axis:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    start = 0
    for part in join.args:
        size = graph.type(part).shape[node.op.axis]
        if lin([(start, 1), (node.op.start, -1)]) == 0 == lin([(size, 1), (node.op.size, -1)]):
            return part
        start = lin([(start, 1), (size, 1)])
    return None
