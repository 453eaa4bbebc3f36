"""Laws of axes: copies vanish into labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from recurra.ir.expr import Sym, evaluate
from recurra.ir.graph import Node, Ref
from recurra.ir.op import Elementwise, join_labels
from recurra.ir.types import Domain, Type
from recurra.ops.attention import Attention
from recurra.ops.contraction import Einsum
from recurra.ops.indexing import Pick
from recurra.ops.movement import Expand, Reshape, Transpose
from recurra.ops.reduction import Max, Min, Prod, Reduction, Sum
from recurra.ops.scan import DiscountedSum
from recurra.ops.source import Const
from recurra.transforms.canonicalize.domains import DOMAINS
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting


def _transposed(node: Node) -> tuple[int, ...]:
    assert isinstance(node.op, Transpose)
    return node.op.order


def _copied(node: Node) -> Expand:
    assert isinstance(node.op, Expand)
    return node.op


def _with_operand(node: Node, graph: Rewriting, index: int, ref: Ref, axes: str) -> Node:
    """Another operand in place of one, with axes of its own."""
    op, (ins, out) = cast("Any", node.op), graph.labels(node)
    ins = (*ins[:index], axes, *ins[index + 1 :])
    labels = f"{','.join(ins)}->{out}" if isinstance(op, Einsum) else join_labels(ins, out)
    return replace(
        node, op=replace(op, labels=labels), args=(*node.args[:index], ref, *node.args[index + 1 :])
    )


@rule(Attention)
def attend_transposed(node: Node, graph: Rewriting) -> Node | None:
    """attention(transpose(x)) → attention(x) with labels reordered"""
    op = node.op
    assert isinstance(op, Attention)
    for k, a in enumerate(node.args):
        inner = graph.producer(a, Transpose)
        if inner is not None:
            (q, mine), s, (p, v), y = op.parts()
            labels = [q, mine, v, op.mask]
            order = _transposed(inner)
            labels[k] = "".join(c for _, c in sorted(zip(order, labels[k], strict=True)))
            new = replace(
                op,
                scores=f"{labels[0]},{labels[1]}->{s}",
                values=f"{p},{labels[2]}->{y}",
                mask=labels[3],
            )
            args = (*node.args[:k], inner.args[0], *node.args[k + 1 :])
            return replace(node, op=new, args=args)
    return None


@rule(Elementwise, Einsum)
def absorb_transpose(node: Node, graph: Rewriting) -> Node | None:
    """f(transpose(x)) → f(x) with labels reordered"""
    for k, a in enumerate(node.args):
        inner = graph.producer(a, Transpose)
        if inner is not None:
            ins, _ = graph.labels(node)
            was = sorted(zip(_transposed(inner), ins[k], strict=True))
            return _with_operand(node, graph, k, inner.args[0], "".join(c for _, c in was))
    return None


@rule(Reduction, DiscountedSum)
def reduce_transpose(node: Node, graph: Rewriting) -> Node | None:
    """Σ over axes of transpose(x) → Σ over other axes of x, where the rest keeps its order"""
    assert isinstance(node.op, (Reduction, DiscountedSum))
    inner = graph.producer(node.args[0], Transpose)
    if inner is None:
        return None
    order = _transposed(inner)
    mine = node.op.axes if isinstance(node.op, Reduction) else (node.op.axis,)
    kept = [a for k, a in enumerate(order) if k not in mine]
    if kept != sorted(kept):
        return None
    axes = tuple(sorted(order[a] for a in mine))
    by = {"axes": axes} if isinstance(node.op, Reduction) else {"axis": axes[0]}
    return replace(node, op=replace(node.op, **by), args=inner.args)


@rule(Sum, Prod, Max, Min)
def reduce_added(node: Node, graph: Rewriting) -> Node | Ref | None:
    """Σ over axes of one of reshape(x), or of x with axes of one more → reshape(x)"""
    assert isinstance(node.op, Reduction)
    ref, given = node.args[0], graph.type(node.args[0])
    if given.dtype != node.tensor.dtype or any(given.shape[a] != 1 for a in node.op.axes):
        return None
    while (inner := of_same_size(ref, graph)) is not None:
        ref = inner
    if ref is node.args[0]:
        return None
    if graph.type(ref).shape == node.tensor.shape:
        return ref
    return replace(node, op=Reshape(shape=node.tensor.shape), args=(ref,))


def of_same_size(ref: Ref, graph: Rewriting) -> Ref | None:
    """The source of a reshape that keeps all elements in order; None if the read is no such."""
    inner = graph.producer(ref, Reshape) or graph.producer(ref, Expand)
    if inner is None or (isinstance(inner.op, Expand) and {*inner.op.sizes} != {1}):
        return None
    if isinstance(inner.op, Expand):
        small, wide = inner.op.labels.split("->")
        if [c for c in wide if c in small] != [*small]:
            return None
    return inner.args[0]


@rule(Transpose)
def no_transpose(node: Node, graph: Rewriting) -> Ref | None:
    """transpose(x) in the order it has → x"""
    assert isinstance(node.op, Transpose)
    return node.args[0] if node.op.order == tuple(range(len(node.op.order))) else None


@rule(Elementwise, Einsum)
def absorb_expand(node: Node, graph: Rewriting) -> Node | None:
    """f(expand(x), y) → f(x, y) with fewer labels, where y has the axis too"""
    ins, _ = graph.labels(node)
    for k, a in enumerate(node.args):
        inner = graph.producer(a, Expand)
        if inner is None:
            continue
        src, wide = _copied(inner).labels.split("->")
        mine = {w: c for w, c in zip(wide, ins[k], strict=True)}
        small = "".join(mine[c] for c in src)
        gone = set(ins[k]) - set(small)
        elsewhere = set("".join(s for j, s in enumerate(ins) if j != k))
        if gone <= elsewhere:
            return _with_operand(node, graph, k, inner.args[0], small)
    return None


@rule(Elementwise)
def hoist_expand(node: Node, graph: Rewriting) -> Ref | None:
    """f(expand(x)) → expand(f(x)), where every operand is a copy along the axis"""
    ins, out = graph.labels(node)
    inners = [graph.producer(a, Expand) for a in node.args]
    kept: set[str] = set()
    small: list[str] = []
    for s, inner in zip(ins, inners, strict=True):
        if inner is None:
            small.append(s)
            kept |= set(s)
        else:
            src, wide = _copied(inner).labels.split("->")
            mine = dict(zip(wide, s, strict=True))
            small.append("".join(mine[c] for c in src))
            kept |= set(small[-1])
    if kept == set(out) or not any(inners) or not isinstance(node.type, Type):
        return None
    if any(
        i is not None and set(s) != kept & set(w)
        for s, w, i in zip(small, ins, inners, strict=True)
    ):
        return None
    narrow = "".join(c for c in out if c in kept)
    args = tuple(i.args[0] if i is not None else a for a, i in zip(node.args, inners, strict=True))
    op: Any = node.op
    inside = graph.emit(
        replace(op, labels=join_labels(tuple(small), narrow)), args, node.domain, node.op.name
    )
    sizes = tuple(s for c, s in zip(out, node.type.shape, strict=True) if c not in kept)
    return graph.emit(
        Expand(labels=f"{narrow}->{out}", sizes=sizes), (inside,), node.domain, "expand"
    )


@rule(Expand)
def expand_constant(node: Node, graph: Rewriting) -> Node | None:
    """expand(c) → a constant of that shape"""
    inner = graph[node.args[0].name]
    if isinstance(inner.op, Const) and isinstance(node.type, Type):
        return replace(node, op=replace(inner.op, shape=node.type.shape), args=())
    return None


@rule(Elementwise)
def narrow_constant(node: Node, graph: Rewriting) -> Node | None:
    """f(x, c copied) → f(x, c) with fewer labels"""
    ins, _ = graph.labels(node)
    for k, a in enumerate(node.args):
        inner = graph[a.name]
        if isinstance(inner.op, Const) and ins[k]:
            elsewhere = set("".join(s for j, s in enumerate(ins) if j != k))
            if set(ins[k]) <= elsewhere:
                c = graph.emit(replace(inner.op, shape=()), (), Domain(), "const")
                return _with_operand(node, graph, k, c, "")
    return None


@rule(Elementwise)
def constant_tensor(node: Node, graph: Rewriting) -> Node | None:
    """f(constant tensors) → one constant tensor"""
    if not node.args or not isinstance(node.type, Type) or not node.type.shape:
        return None
    inners = [i for a in node.args if isinstance(i := graph[a.name].op, Const)]
    if len(inners) < len(node.args):
        return None
    scalars = tuple(graph.emit(replace(i, shape=()), (), Domain(), "const") for i in inners)
    op: Any = node.op
    one = graph.emit(replace(op, labels=""), scalars, node.domain, node.op.name)
    return replace(
        node,
        op=Expand(labels="->" + "abcdefgh"[: node.type.rank], sizes=node.type.shape),
        args=(one,),
    )


@rule(Pick)
def pick_expand(node: Node, graph: Rewriting) -> Ref | None:
    """pick(expand(x)) at a point of the copied axis → x"""
    assert isinstance(node.op, Pick)
    inner = graph.producer(node.args[0], Expand)
    if inner is None or not _is_inside(node, graph):
        return None
    src, wide = _copied(inner).labels.split("->")
    c = wide[node.op.axis]
    if c in src:
        return None
    rest = "".join(x for x in wide if x != c)
    if rest == src:
        return inner.args[0]
    new = [x for x in wide if x not in src]
    sizes = tuple(s for x, s in zip(new, _copied(inner).sizes, strict=True) if x != c)
    return graph.emit(
        Expand(labels=f"{src}->{rest}", sizes=sizes), inner.args, node.domain, "expand"
    )


def _is_inside(node: Node, graph: Rewriting) -> bool:
    """Does `at` surely fall inside the axis?"""
    assert isinstance(node.op, Pick)
    at, size = node.op.at_, graph.type(node.args[0]).shape[node.op.axis]
    if isinstance(at, Sym) and at.name in node.domain:
        r = node.domain[at.name]
        return r.hi == size and evaluate(r.lo, graph.sizes) >= 0
    return isinstance(at, int) and isinstance(size, int) and 0 <= at < size


SHAPES = (
    no_transpose,
    attend_transposed,
    absorb_transpose,
    reduce_transpose,
    reduce_added,
    *DOMAINS,
    expand_constant,
    constant_tensor,
    narrow_constant,
    absorb_expand,
    hoist_expand,
    pick_expand,
)
