"""Laws of arithmetic."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from recurra.ir.expr import FALSE, TRUE, mul
from recurra.ir.graph import Node, Ref
from recurra.ir.op import Elementwise, join_labels
from recurra.ir.types import NUMPY_NAME, Type, is_float
from recurra.ops import elementwise as el
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.indexing import OneHot
from recurra.ops.movement import Expand, Transpose
from recurra.ops.reduction import Reduction, Sum
from recurra.ops.source import Const, Value
from recurra.polyhedral.boxes import decided
from recurra.transforms.canonicalize.comparisons import (
    EQUAL,
    div_itself,
    equal_itself,
    operand,
    sub_itself,
)
from recurra.transforms.integer_ranges import extremes
from recurra.transforms.rewriter.pattern_rewriter import Rewriting, is_const, rule


@rule(Merge)
def plain_merge(n: Node, g: Rewriting) -> Ref | None:
    """merge(x, when=(true)) → x"""
    assert isinstance(n.op, Merge)
    if n.op.when == (TRUE,) and n.args[0].name != n.name:
        return n.args[0]
    return None


@rule(Merge)
def dead_branch(n: Node, g: Rewriting) -> Node | None:
    """merge(x, y, when=(ψ, φ)) → merge(x, when=(ψ)), where φ holds at no point"""
    assert isinstance(n.op, Merge)
    known = [decided(n.domain, c, g.sizes) for c in n.op.when]
    live = [k for k, c in enumerate(known) if c != FALSE]
    if not live or len(live) == len(n.args):
        return None
    when = tuple(TRUE if known[k] == TRUE else n.op.when[k] for k in live)
    locs = tuple(n.locs[k] for k in live) if n.locs else ()
    return replace(n, op=Merge(when=when), args=tuple(n.args[k] for k in live), locs=locs)


@rule(el.Detach, el.WithGradient)
def detach_done(n: Node, g: Rewriting) -> Ref | None:
    """detach(x) → x, with_gradient(x, y) → x, once gradients are written"""
    (mine, *_), out = g.labels(n)
    if mine == out:
        return n.args[0]
    if set(mine) != set(out):
        return None
    return g.emit(Transpose(order=tuple(map(mine.index, out))), n.args[:1], n.domain, "turned")


@rule(Elementwise)
def fold_constants(n: Node, g: Rewriting) -> Node | None:
    """f(2, 3) → its value"""
    op: Any = n.op
    if n.args and op.labels == "" and isinstance(n.type, Type) and not n.type.shape:
        values = [is_const(g, a) for a in n.args]
        if all(v is not None for v in values):
            types = [g.type(a).dtype for a in n.args]
            with np.errstate(all="ignore"):  # it wraps around, or is inf, as it would be when run
                ops = [np.asarray(v, NUMPY_NAME[t]) for v, t in zip(values, types, strict=True)]
                y = np.asarray(n.op.eval(np, *ops)).item()
            return replace(n, op=Const(value=y, dtype=n.type.dtype), args=())
    return None


@rule(el.Mul)
def mul_one(n: Node, g: Rewriting) -> Ref | None:
    """x · 1 → x"""
    for k in (0, 1):
        if is_const(g, n.args[1 - k], 1) is not None:
            return operand(n, g, k)
    return None


@rule(el.Mul)
def mul_zero(n: Node, g: Rewriting) -> Ref | None:
    """x · 0 → 0 (finite math)"""
    for k in (0, 1):
        if is_const(g, n.args[k], 0) is not None and isinstance(n.type, Type):
            return g.emit(
                Const(value=0.0, dtype=n.type.dtype, shape=n.type.shape), (), n.domain, "zero"
            )
    return None


@rule(el.Add)
def add_zero(n: Node, g: Rewriting) -> Ref | None:
    """x + 0 → x"""
    for k in (0, 1):
        if is_const(g, n.args[1 - k], 0) is not None:
            return operand(n, g, k)
    return None


@rule(el.Sub, el.Div)
def sub_zero(n: Node, g: Rewriting) -> Ref | None:
    """x - 0 → x, x / 1 → x"""
    neutral = 0 if isinstance(n.op, el.Sub) else 1
    return operand(n, g, 0) if is_const(g, n.args[1], neutral) is not None else None


@rule(el.Neg)
def neg_neg(n: Node, g: Rewriting) -> Ref | None:
    """-(-x) → x"""
    inner = g.producer(n.args[0], el.Neg)
    return inner.args[0] if inner and operand(n, g, 0) and operand(inner, g, 0) else None


@rule(el.Cast)
def cast_same(n: Node, g: Rewriting) -> Ref | None:
    """cast of x to its own type → x"""
    return operand(n, g, 0)


@rule(el.Sub)
def factor_difference(n: Node, g: Rewriting) -> Node | None:
    """d·x - d·y → d·(x - y)"""
    assert isinstance(n.op, el.Sub)
    if n.op.labels:
        return None
    a, b = (g.producer(r, el.Mul) for r in n.args)
    if a is None or b is None:
        return None
    out = g.labels(a)[1]
    named = dict(zip(g.labels(b)[1], out, strict=True))
    pa = _factors(a, g)
    pb = [(r, "".join(named[c] for c in labels)) for r, labels in _factors(b, g)]
    for (d, ld), (x, lx) in (pa, pa[::-1]):
        for (e, le), (y, ly) in (pb, pb[::-1]):
            if d == e and ld == le:
                if set(lx) != set(out) and set(ly) != set(out):
                    continue
                wide = out if set(lx) | set(ly) == set(out) else ""
                if not wide:
                    continue
                inner = g.emit(el.Sub(labels=join_labels((lx, ly), wide)), (x, y), n.domain, "diff")
                return replace(n, op=el.Mul(labels=join_labels((ld, wide), out)), args=(d, inner))
    return None


def _factors(n: Node, g: Rewriting) -> list[tuple[Ref, str]]:
    """The two operands of a product with their labels."""
    return list(zip(n.args, g.labels(n)[0], strict=True))


@rule(Sum)
def sum_of_scaled(n: Node, g: Rewriting) -> Node | None:
    """Σₖ d·xₖ → d·Σₖ xₖ"""
    assert isinstance(n.op, Sum)
    inner = g.producer(n.args[0], el.Mul)
    if inner is None:
        return None
    ins, out = g.labels(inner)
    lost = {out[a] for a in n.op.axes}
    kept = "".join(c for c in out if c not in lost)
    for k in (0, 1):
        if not set(ins[k]) & lost and lost <= set(ins[1 - k]):
            other = ins[1 - k]
            axes = tuple(j for j, c in enumerate(other) if c in lost)
            small = g.emit(Sum(axes=axes), (inner.args[1 - k],), n.domain, "sum")
            rest = "".join(c for c in other if c not in lost)
            if set(ins[k]) | set(rest) != set(kept):
                return None
            return replace(
                n, op=el.Mul(labels=join_labels((ins[k], rest), kept)), args=(inner.args[k], small)
            )
    return None


@rule(Sum)
def sum_one_hot(n: Node, g: Rewriting) -> Ref | None:
    """Σₖ onehot(i)ₖ → 1, the index being in range"""
    assert isinstance(n.op, Sum)
    assert isinstance(n.type, Type)
    inner = g.producer(n.args[0], OneHot)
    op: Any = inner and inner.op
    if op is not None and n.op.axes == (op.axis,):
        return g.emit(Const(value=1.0, dtype=n.type.dtype, shape=n.type.shape), (), n.domain, "one")
    return None


@rule(Sum)
def sum_of_expand(n: Node, g: Rewriting) -> Node | None:
    """Σ over a copied axis of x → n · x"""
    assert isinstance(n.op, Sum)
    inner = g.producer(n.args[0], Expand)
    if inner is None or not isinstance(n.type, Type) or not is_float(n.type.dtype):
        return None
    copied: Any = inner.op
    src, out = copied.labels.split("->")
    if {out[a] for a in n.op.axes} != set(out) - set(src) or "".join(
        c for c in out if c in src
    ) != src:
        return None

    count: Any = 1
    for s in copied.sizes:
        count = mul(count, s)
    times = g.emit(Value(expr=count, dtype=n.type.dtype), (), n.domain, "count")
    return replace(n, op=el.Mul(labels=join_labels((src, ""), src)), args=(inner.args[0], times))


@rule(Sum)
def sum_of_constant(n: Node, g: Rewriting) -> Ref | None:
    """Σ of n copies of a number → n · the number"""
    assert isinstance(n.op, Sum)
    x: Any = g[n.args[0].name].op
    if not isinstance(x, Const) or not isinstance(n.type, Type) or not is_float(n.type.dtype):
        return None
    count: Any = reduce(mul, (g.type(n.args[0]).shape[a] for a in n.op.axes), 1)
    one = g.emit(Value(expr=count, dtype=n.type.dtype), (), n.domain, "count")
    factor = g.emit(replace(x, shape=n.type.shape), (), n.domain, "const")
    labels = (
        "" if not n.type.shape else join_labels((_AXES[: n.type.rank], ""), _AXES[: n.type.rank])
    )
    return g.emit(el.Mul(labels=labels), (factor, one), n.domain, "sum")


_AXES = "abcdefgh"


@rule(Sum)
def sum_of_einsum(n: Node, g: Rewriting) -> Node | None:
    """Σ over axes of einsum → einsum without them"""
    assert isinstance(n.op, Sum)
    inner = g.producer(n.args[0], Einsum)
    if inner is None:
        return None
    product: Any = inner.op
    ins, out = product.parts()
    left = "".join(c for k, c in enumerate(out) if k not in n.op.axes)
    return replace(n, op=Einsum(labels=f"{','.join(ins)}->{left}"), args=inner.args)


@rule(Sum)
def sum_of_product(n: Node, g: Rewriting) -> Node | None:
    """Σ over axes of a·b, both having them → einsum(a, b)"""
    assert isinstance(n.op, Sum)
    assert isinstance(n.type, Type)
    inner = g.producer(n.args[0], el.Mul)
    if inner is None or not is_float(n.type.dtype) or len(g.readers[inner.name]) > 1:
        return None
    ins, out = g.labels(inner)
    lost = {out[a] for a in n.op.axes}
    if not all(lost <= set(s) for s in ins) or inner.args[0] == inner.args[1]:
        return None
    left = "".join(c for k, c in enumerate(out) if k not in n.op.axes)
    if not left:  # a dot of two vectors: the fused product and sum is as fast
        return None
    return replace(n, op=Einsum(labels=f"{','.join(ins)}->{left}"), args=inner.args)


@rule(Sum)
def sum_nothing(n: Node, g: Rewriting) -> Ref | None:
    """Σ over no axes of x → x"""
    return n.args[0] if n.op == Sum(axes=()) else None


@rule(Reduction)
def reduce_reduced(n: Node, g: Rewriting) -> Node | None:
    """Σ over axes of what Σ over others left → Σ over both; so of every monoid"""
    assert isinstance(n.op, Reduction)
    inner = g.producer(n.args[0], type(n.op))
    if inner is None or n.op.monoid is None or inner.name in g.outputs:
        return None
    if len(g.readers[inner.name]) > 1:
        return None
    first: Any = inner.op
    left = [a for a in range(g.type(inner.args[0]).rank) if a not in first.axes]
    axes = sorted({*first.axes, *(left[a] for a in n.op.axes)})
    return replace(n, op=replace(n.op, axes=tuple(axes)), args=inner.args)


@rule(el.Pow)
def square_power(n: Node, g: Rewriting) -> Node | None:
    """x ^ 2 → square(x)"""
    if is_const(g, n.args[1], 2) is not None and operand(n, g, 0):
        return replace(n, op=el.Square(), args=n.args[:1])
    return None


@rule(el.Maximum, el.Minimum)
def clamp_inside(n: Node, g: Rewriting) -> Ref | None:
    """max(k, c) → k where k is never below c, min(k, c) → k where never above (integers)"""
    if not isinstance(n.type, Type) or is_float(n.type.dtype):
        return None
    for k in (0, 1):
        (lo, hi), (least, most) = extremes(g, n.args[k]), extremes(g, n.args[1 - k])
        if lo >= most if isinstance(n.op, el.Maximum) else hi <= least:
            return operand(n, g, k)
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
    square_power,
)
