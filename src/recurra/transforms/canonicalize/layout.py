"""Laws of axes: absorb transposes and copies into the labels of their readers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from recurra.ir.expr import Sym, evaluate
from recurra.ir.graph import Node, Ref
from recurra.ir.op import LETTERS, Elementwise, join_labels
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
from recurra.transforms.rewriter.rewriting import Rewriting, shape_of


def _with_operand(node: Node, graph: Rewriting, index: int, ref: Ref, axes: str) -> Node:
    """The equation with another operand at one position, which has labels of its own."""
    op, (ins, out) = cast("Any", node.op), graph.labels(node)
    ins = (*ins[:index], axes, *ins[index + 1 :])
    labels = f"{','.join(ins)}->{out}" if isinstance(op, Einsum) else join_labels(ins, out)
    return replace(node.with_operand(index, ref), op=replace(op, labels=labels))


def _transpose(graph: Rewriting, ref: Ref) -> tuple[tuple[int, ...], Ref] | None:
    """The order and the operand of the transpose behind a read, if one is."""
    inner = graph.producer(ref, Transpose)
    return (inner.op.order, inner.args[0]) if inner and isinstance(inner.op, Transpose) else None


def _expand(graph: Rewriting, ref: Ref, axes: str) -> tuple[str, Ref] | None:
    """The labels and the operand of the expand behind a read that has labels `axes`, if one is."""
    inner = graph.producer(ref, Expand)
    if inner is None or not isinstance(inner.op, Expand):
        return None
    small, wide = inner.op.labels.split("->")
    to = dict(zip(wide, axes, strict=True))
    return "".join(to[c] for c in small), inner.args[0]


@rule(Attention)
def attend_transposed(node: Node, graph: Rewriting) -> Node | None:
    """attention(transpose(x)) → attention(x) with labels reordered"""
    op = node.op
    assert isinstance(op, Attention)
    for k, a in enumerate(node.args):
        found = _transpose(graph, a)
        if found is not None:
            order, source = found
            (q, mine), s, (p, v), y = op.parts()
            labels = [q, mine, v, op.mask]
            labels[k] = "".join(c for _, c in sorted(zip(order, labels[k], strict=True)))
            scores, values = f"{labels[0]},{labels[1]}->{s}", f"{p},{labels[2]}->{y}"
            new = replace(op, scores=scores, values=values, mask=labels[3])
            return replace(node.with_operand(k, source), op=new)
    return None


@rule(Elementwise, Einsum)
def absorb_transpose(node: Node, graph: Rewriting) -> Node | None:
    """f(transpose(x)) → f(x) with labels reordered"""
    for k, a in enumerate(node.args):
        found = _transpose(graph, a)
        if found is not None:
            axes = sorted(zip(found[0], graph.labels(node)[0][k], strict=True))
            return _with_operand(node, graph, k, found[1], "".join(c for _, c in axes))
    return None


@rule(Reduction, DiscountedSum)
def reduce_transpose(node: Node, graph: Rewriting) -> Node | None:
    """Σ over axes of transpose(x) → Σ over other axes of x, where the rest keeps its order"""
    assert isinstance(node.op, (Reduction, DiscountedSum))
    found = _transpose(graph, node.args[0])
    if found is None:
        return None
    order, source = found
    mine = node.op.axes if isinstance(node.op, Reduction) else (node.op.axis,)
    kept = [a for k, a in enumerate(order) if k not in mine]
    if kept != sorted(kept):
        return None
    axes = tuple(sorted(order[a] for a in mine))
    by = {"axes": axes} if isinstance(node.op, Reduction) else {"axis": axes[0]}
    return replace(node, op=replace(node.op, **by), args=(source,))


@rule(Sum, Prod, Max, Min)
def reduce_added(node: Node, graph: Rewriting) -> Node | Ref | None:
    """Σ over axes of size one, of reshape(x) or of x with such axes added → reshape(x)"""
    assert isinstance(node.op, Reduction)
    ref, type_ = node.args[0], graph.type(node.args[0])
    if type_.dtype != node.tensor.dtype or any(type_.shape[a] != 1 for a in node.op.axes):
        return None
    while (inner := _reshaped(ref, graph)) is not None:
        ref = inner
    if ref is node.args[0]:
        return None
    if graph.type(ref).shape == node.tensor.shape:
        return ref
    return replace(node, op=Reshape(shape=node.tensor.shape), args=(ref,))


def _reshaped(ref: Ref, graph: Rewriting) -> Ref | None:
    """The operand of a reshape, or of an expand that adds axes of size one, if `ref` reads one."""
    inner = graph.producer(ref, Reshape) or graph.producer(ref, Expand)
    if inner is None:
        return None
    if isinstance(inner.op, Expand):
        small, wide = inner.op.labels.split("->")
        if {*inner.op.sizes} != {1} or [c for c in wide if c in small] != [*small]:
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
        found = _expand(graph, a, ins[k])
        if found is not None:
            axes, source = found
            elsewhere = set("".join(s for j, s in enumerate(ins) if j != k))
            if set(ins[k]) - set(axes) <= elsewhere:
                return _with_operand(node, graph, k, source, axes)
    return None


@rule(Elementwise)
def hoist_expand(node: Node, graph: Rewriting) -> Ref | None:
    """f(expand(x)) → expand(f(x)), where every operand is a copy along the axis"""
    ins, out = graph.labels(node)
    found = [_expand(graph, a, axes) for a, axes in zip(node.args, ins, strict=True)]
    small = [x[0] if x is not None else axes for x, axes in zip(found, ins, strict=True)]
    kept = set("".join(small))
    if kept == set(out) or not any(found) or not isinstance(node.type, Type):
        return None
    if any(
        x is not None and set(s) != kept & set(w) for s, w, x in zip(small, ins, found, strict=True)
    ):
        return None
    narrow = "".join(c for c in out if c in kept)
    args = tuple(x[1] if x is not None else a for a, x in zip(node.args, found, strict=True))
    op: Any = replace(cast("Any", node.op), labels=join_labels(tuple(small), narrow))
    inside = graph.emit(op, args, node.domain, node.op.name)
    sizes = tuple(s for c, s in zip(out, node.type.shape, strict=True) if c not in kept)
    expand = Expand(labels=f"{narrow}->{out}", sizes=sizes)
    return graph.emit(expand, (inside,), node.domain, "expand")


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
    shape, ops = shape_of(node.type), [graph[a.name].op for a in node.args]
    constants = [op for op in ops if isinstance(op, Const)]
    if not ops or not shape or len(constants) < len(ops):
        return None
    args = tuple(graph.emit(replace(c, shape=()), (), Domain(), "const") for c in constants)
    one = graph.emit(replace(cast("Any", node.op), labels=""), args, node.domain, node.op.name)
    return replace(node, op=Expand(labels="->" + LETTERS[: len(shape)], sizes=shape), args=(one,))


@rule(Pick)
def pick_expand(node: Node, graph: Rewriting) -> Ref | None:
    """pick(expand(x)) at a point of the copied axis → x"""
    assert isinstance(node.op, Pick)
    inner = graph.producer(node.args[0], Expand)
    if inner is None or not _is_inside(node, graph):
        return None
    assert isinstance(inner.op, Expand)
    src, wide = inner.op.labels.split("->")
    c = wide[node.op.axis]
    if c in src:
        return None
    rest = wide.replace(c, "")
    if rest == src:
        return inner.args[0]
    new = [x for x in wide if x not in src]
    sizes = tuple(s for x, s in zip(new, inner.op.sizes, strict=True) if x != c)
    expand = Expand(labels=f"{src}->{rest}", sizes=sizes)
    return graph.emit(expand, inner.args, node.domain, "expand")


def _is_inside(node: Node, graph: Rewriting) -> bool:
    """Tell whether a pick is known to fall inside the axis."""
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
