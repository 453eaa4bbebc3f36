"""Laws of arithmetic."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from recurra.ir.expr import FALSE, TRUE, mul
from recurra.ir.graph import Node, Ref
from recurra.ir.op import LETTERS, Elementwise, Op, join_labels
from recurra.ir.types import NUMPY_NAME, Type, is_float
from recurra.ops import elementwise as el
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.indexing import OneHot
from recurra.ops.movement import Expand, Transpose
from recurra.ops.reduction import Reduction, Sum
from recurra.ops.source import Const, Value
from recurra.polyhedral.boxes import fold_condition
from recurra.transforms.canonicalize.comparisons import (
    EQUAL,
    div_itself,
    equal_itself,
    operand,
    sub_itself,
)
from recurra.transforms.integer_ranges import extremes
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting, is_const, shape_of


@rule(Merge)
def plain_merge(node: Node, graph: Rewriting) -> Ref | None:
    """merge(x, when=(true)) → x"""
    assert isinstance(node.op, Merge)
    if node.op.when == (TRUE,) and node.args[0].name != node.name:
        return node.args[0]
    return None


@rule(Merge)
def dead_branch(node: Node, graph: Rewriting) -> Node | None:
    """merge(x, y, when=(ψ, φ)) → merge(x, when=(ψ)), where φ holds at no point"""
    assert isinstance(node.op, Merge)
    truth = [fold_condition(node.domain, c, graph.sizes) for c in node.op.when]
    live = [k for k, c in enumerate(truth) if c != FALSE]
    if not live or len(live) == len(node.args):
        return None
    when = tuple(TRUE if truth[k] == TRUE else node.op.when[k] for k in live)
    locs = tuple(node.locs[k] for k in live) if node.locs else ()
    return replace(node, op=Merge(when=when), args=tuple(node.args[k] for k in live), locs=locs)


@rule(el.Detach, el.WithGradient)
def detach_done(node: Node, graph: Rewriting) -> Ref | None:
    """detach(x) → x, with_gradient(x, y) → x, once gradients are written"""
    (mine, *_), out = graph.labels(node)
    if mine == out:
        return node.args[0]
    if set(mine) != set(out):
        return None
    return graph.emit(
        Transpose(order=tuple(map(mine.index, out))), node.args[:1], node.domain, "turned"
    )


@rule(Elementwise)
def fold_constants(node: Node, graph: Rewriting) -> Node | None:
    """f(2, 3) → its value"""
    op: Any = node.op
    values = [is_const(graph, a) for a in node.args]
    if not values or None in values or op.labels != "" or shape_of(node.type):
        return None
    types = [NUMPY_NAME[graph.type(a).dtype] for a in node.args]
    with np.errstate(all="ignore"):  # it wraps around, or is inf, as it would be when run
        args = [np.asarray(v, t) for v, t in zip(values, types, strict=True)]
        y = np.asarray(op.eval(np, *args)).item()
    return replace(node, op=Const(value=y, dtype=node.tensor.dtype), args=())


def _without_neutral(node: Node, graph: Rewriting, neutral: float) -> Ref | None:
    """The other operand of a commutative op, if one is its neutral element."""
    for k in (0, 1):
        if is_const(graph, node.args[1 - k], neutral) is not None:
            return operand(node, graph, k)
    return None


@rule(el.Mul)
def mul_one(node: Node, graph: Rewriting) -> Ref | None:
    """x · 1 → x"""
    return _without_neutral(node, graph, 1)


@rule(el.Mul)
def mul_zero(node: Node, graph: Rewriting) -> Ref | None:
    """x · 0 → 0 (finite math)"""
    zero = any(is_const(graph, a, 0) is not None for a in node.args)
    return graph.constant(node, 0.0, "zero") if zero else None


@rule(el.Add)
def add_zero(node: Node, graph: Rewriting) -> Ref | None:
    """x + 0 → x"""
    return _without_neutral(node, graph, 0)


@rule(el.Sub, el.Div)
def sub_zero(node: Node, graph: Rewriting) -> Ref | None:
    """x - 0 → x, x / 1 → x"""
    neutral = is_const(graph, node.args[1], 0 if isinstance(node.op, el.Sub) else 1)
    return operand(node, graph, 0) if neutral is not None else None


@rule(el.Neg)
def neg_neg(node: Node, graph: Rewriting) -> Ref | None:
    """-(-x) → x"""
    inner = graph.producer(node.args[0], el.Neg)
    return inner.args[0] if inner and operand(node, graph, 0) and operand(inner, graph, 0) else None


@rule(el.Cast)
def cast_same(node: Node, graph: Rewriting) -> Ref | None:
    """cast of x to its own type → x"""
    return operand(node, graph, 0)


@rule(el.Sub)
def factor_difference(node: Node, graph: Rewriting) -> Node | None:
    """d·x - d·y → d·(x - y)"""
    assert isinstance(node.op, el.Sub)
    if node.op.labels:
        return None
    left, right = (graph.producer(r, el.Mul) for r in node.args)
    if left is None or right is None:
        return None
    (ins_left, out), (ins_right, out_right) = graph.labels(left), graph.labels(right)
    to = dict(zip(out_right, out, strict=True))
    one = list(zip(left.args, ins_left, strict=True))
    other = [
        (r, "".join(to[c] for c in labels)) for r, labels in zip(right.args, ins_right, strict=True)
    ]
    for factor, (x, lx) in (one, one[::-1]):
        for same, (y, ly) in (other, other[::-1]):
            if factor == same and out and set(out) in (set(lx), set(ly)):
                sub = el.Sub(labels=join_labels((lx, ly), out))
                inner = graph.emit(sub, (x, y), node.domain, "diff")
                d, ld = factor
                return replace(node, op=el.Mul(labels=join_labels((ld, out), out)), args=(d, inner))
    return None


@rule(Sum)
def sum_of_scaled(node: Node, graph: Rewriting) -> Node | None:
    """Σₖ d·xₖ → d·Σₖ xₖ"""
    assert isinstance(node.op, Sum)
    inner = graph.producer(node.args[0], el.Mul)
    if inner is None:
        return None
    ins, out = graph.labels(inner)
    summed = {out[a] for a in node.op.axes}
    kept = "".join(c for c in out if c not in summed)
    for k in (0, 1):
        mine, other = ins[k], ins[1 - k]
        if not set(mine) & summed and summed <= set(other):
            axes = tuple(j for j, c in enumerate(other) if c in summed)
            small = graph.emit(Sum(axes=axes), (inner.args[1 - k],), node.domain, "sum")
            rest = "".join(c for c in other if c not in summed)
            if set(mine) | set(rest) != set(kept):
                return None
            op = el.Mul(labels=join_labels((mine, rest), kept))
            return replace(node, op=op, args=(inner.args[k], small))
    return None


@rule(Sum)
def sum_one_hot(node: Node, graph: Rewriting) -> Ref | None:
    """Σₖ onehot(i)ₖ → 1, the index being in range"""
    assert isinstance(node.op, Sum)
    inner = graph.producer(node.args[0], OneHot)
    op: Any = inner and inner.op
    whole = op is not None and node.op.axes == (op.axis,)
    return graph.constant(node, 1.0, "one") if whole else None


@rule(Sum)
def sum_of_expand(node: Node, graph: Rewriting) -> Node | None:
    """Σ over a copied axis of x → n · x"""
    assert isinstance(node.op, Sum)
    inner = graph.producer(node.args[0], Expand)
    if inner is None or not isinstance(node.type, Type) or not is_float(node.type.dtype):
        return None
    copied: Any = inner.op
    src, out = copied.labels.split("->")
    in_order = "".join(c for c in out if c in src) == src
    if not in_order or {out[a] for a in node.op.axes} != set(out) - set(src):
        return None
    count = Value(expr=reduce(mul, copied.sizes, 1), dtype=node.type.dtype)
    times = graph.emit(count, (), node.domain, "count")
    return replace(node, op=el.Mul(labels=join_labels((src, ""), src)), args=(inner.args[0], times))


@rule(Sum)
def sum_of_constant(node: Node, graph: Rewriting) -> Ref | None:
    """Σ of n copies of a number → n · the number"""
    assert isinstance(node.op, Sum)
    x = graph[node.args[0].name].op
    if not isinstance(x, Const) or not isinstance(node.type, Type) or not is_float(node.type.dtype):
        return None
    count = reduce(mul, (graph.type(node.args[0]).shape[a] for a in node.op.axes), 1)
    one = graph.emit(Value(expr=count, dtype=node.type.dtype), (), node.domain, "count")
    factor = graph.emit(replace(x, shape=node.type.shape), (), node.domain, "const")
    axes = LETTERS[: node.type.rank]
    labels = join_labels((axes, ""), axes) if axes else ""
    return graph.emit(el.Mul(labels=labels), (factor, one), node.domain, "sum")


@rule(Sum)
def sum_of_einsum(node: Node, graph: Rewriting) -> Node | None:
    """Σ over axes of einsum → einsum without them"""
    assert isinstance(node.op, Sum)
    inner = graph.producer(node.args[0], Einsum)
    if inner is None:
        return None
    product: Any = inner.op
    ins, out = product.parts()
    kept = "".join(c for k, c in enumerate(out) if k not in node.op.axes)
    return replace(node, op=replace(product, labels=f"{','.join(ins)}->{kept}"), args=inner.args)


@rule(Sum)
def sum_of_product(node: Node, graph: Rewriting) -> Node | None:
    """Σ over axes of a·b, both having them → einsum(a, b)"""
    assert isinstance(node.op, Sum)
    inner = graph.producer(node.args[0], el.Mul)
    if inner is None or not is_float(node.tensor.dtype) or len(graph.readers[inner.name]) > 1:
        return None
    ins, out = graph.labels(inner)
    summed = {out[a] for a in node.op.axes}
    if not all(summed <= set(s) for s in ins) or inner.args[0] == inner.args[1]:
        return None
    kept = "".join(c for c in out if c not in summed)
    if not kept:  # a dot of two vectors: the fused product and sum is as fast
        return None
    return replace(node, op=Einsum(labels=f"{','.join(ins)}->{kept}"), args=inner.args)


@rule(Sum)
def sum_nothing(node: Node, graph: Rewriting) -> Ref | None:
    """Σ over no axes of x → x"""
    return node.args[0] if node.op == Sum(axes=()) else None


@rule(Reduction)
def reduce_reduced(node: Node, graph: Rewriting) -> Node | None:
    """Σ over axes of a Σ over others → Σ over both; the same for every monoid"""
    assert isinstance(node.op, Reduction)
    inner = graph.producer(node.args[0], type(node.op))
    if inner is None or node.op.monoid is None or inner.name in graph.outputs:
        return None
    if len(graph.readers[inner.name]) > 1:
        return None
    first: Any = inner.op
    kept = [a for a in range(graph.type(inner.args[0]).rank) if a not in first.axes]
    axes = sorted({*first.axes, *(kept[a] for a in node.op.axes)})
    return replace(node, op=replace(node.op, axes=tuple(axes)), args=inner.args)


@rule(el.Pow)
def power_as_products(node: Node, graph: Rewriting) -> Node | Ref | None:
    """x ^ 2 → square(x), x ^ 1.5 → x · sqrt(x), x ^ -1 → 1 / x: halves, up to 4, of f32 or f64"""
    x, power = operand(node, graph, 0), is_const(graph, node.args[1])
    if x is None or power is None:
        return None
    if power == 2:
        return replace(node, op=el.Square(), args=(x,))
    halves = 2 * power
    if node.tensor.dtype not in ("f32", "f64") or halves not in (*range(-8, 0), *range(1, 9)):
        return None

    def emit(op: Op, *args: Ref) -> Ref:
        return graph.emit(op, args, node.domain, node.name)

    squares, rest = divmod(abs(int(halves)), 4)
    square = emit(el.Square(), x) if squares else x
    factors = [emit(el.Square(), square)] if squares == 2 else [square] * squares
    factors += [x] if rest & 2 else []
    factors += [emit(el.Sqrt(), x)] if rest & 1 else []
    y = reduce(lambda a, b: emit(el.Mul(), a, b), factors)
    if power > 0:
        return y
    axes = graph.labels(node)[1]
    one = emit(Const(value=1.0, dtype=node.tensor.dtype))
    return replace(node, op=el.Div(labels=f",{axes}->{axes}"), args=(one, y))


@rule(el.Maximum, el.Minimum)
def clamp_inside(node: Node, graph: Rewriting) -> Ref | None:
    """max(k, c) → k where k is never below c, min(k, c) → k where never above (integers)"""
    if not isinstance(node.type, Type) or is_float(node.type.dtype):
        return None
    ends = [extremes(graph, a) for a in node.args]
    for k in (0, 1):
        (lo, hi), (least, most) = ends[k], ends[1 - k]
        if lo >= most if isinstance(node.op, el.Maximum) else hi <= least:
            return operand(node, graph, k)
    return None


FINITE = (mul_zero, sub_itself, div_itself, equal_itself)  # laws that hold for finite numbers only
ALGEBRA = (
    plain_merge,
    dead_branch,
    detach_done,
    fold_constants,
    mul_one,
    mul_zero,
    add_zero,
    sub_zero,
    neg_neg,
    cast_same,
    factor_difference,
    clamp_inside,
    *EQUAL,
    sum_nothing,
    sum_one_hot,
    sum_of_expand,
    sum_of_constant,
    sum_of_scaled,
    sum_of_einsum,
    sum_of_product,
    reduce_reduced,
    power_as_products,
)
