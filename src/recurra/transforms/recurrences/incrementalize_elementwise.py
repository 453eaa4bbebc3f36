"""What is done to every element of a range that moves is done once, to every point.

   y[t<T] = sum(square(x[max(t-9,0):t+1]))
→  y = sum(s[max(t-9,0):t+1]);  s[t<T] = square(x)

Unless more would be stored for that: numbers of f32 for those of bf16, or vectors for numbers.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.ir.graph import Node, Ref, Slice, index_symbols
from recurra.ir.op import Elementwise, join_labels
from recurra.ir.types import Range, Type
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting


@rule(Elementwise)
def lift_elementwise(node: Node, rewriting: Rewriting) -> Ref | None:
    """f(x[0:t+1]) → y[0:t+1], y = f(x)"""
    assert isinstance(node.op, Elementwise)
    found = _moving_range(node, rewriting)
    if found is None or found[0].dim in node.op.mentions():
        return None
    (r, s), (ins, out) = found, rewriting.labels(node)
    axis = next(labels[0] for labels, a in zip(ins, node.args, strict=True) if a.slices)
    for labels, a in zip(ins, node.args, strict=True):
        others = [e for e in a.index if not isinstance(e, Slice)]
        if any(r.dim in index_symbols(e) for e in others):
            return None
        if labels.count(axis) != len(a.slices) or labels.find(axis) > 0:
            return None
    if out[:1] != axis:
        return None
    points = tuple(_point(a, r) for a in node.args)
    labels = join_labels(tuple(x.replace(axis, "") for x in ins), out[1:])
    point = rewriting.emit(
        replace(node.op, labels=labels), points, node.domain.with_range(r), node.name
    )
    kept = sum(_bytes(rewriting, p) for p, a in zip(points, node.args, strict=True) if a.slices)
    if _bytes(rewriting, point) > kept:
        return None
    domain = rewriting[point.name].domain
    return Ref(point.name, tuple(s if x.dim == r.dim else x.sym for x in domain))


def _moving_range(node: Node, rewriting: Rewriting) -> tuple[Range, Slice] | None:
    """Return the one range that operands are read at, if it moves with its dim, and its dim's."""
    read = {
        (rewriting.source(a).domain.ranges[k], e)
        for a in node.args
        for k, e in enumerate(a.index)
        if isinstance(e, Slice)
    }
    if len(read) != 1 or any(len(a.slices) > 1 for a in node.args):
        return None
    ((r, s),) = read
    bounds = any(r.dim in x.mentions() for x in node.domain)
    moves = r.dim in node.domain and r.dim in index_symbols(s)
    return (r, s) if moves and not bounds and s.pad is None else None


def _point(ref: Ref, r: Range) -> Ref:
    return Ref(ref.name, tuple(r.sym if isinstance(e, Slice) else e for e in ref.index))


def _bytes(rewriting: Rewriting, ref: Ref) -> int:
    type_ = rewriting.type(ref)
    assert isinstance(type_, Type)
    return type_.nbytes(rewriting.sizes)
