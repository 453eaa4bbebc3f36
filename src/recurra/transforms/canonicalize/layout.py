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
from recurra.ops.movement import Expand, Transpose
from recurra.ops.reduction import Reduction
from recurra.ops.scan import DiscountedSum
from recurra.ops.source import Const
from recurra.transforms.canonicalize.domains import DOMAINS
from recurra.transforms.rewriter.pattern_rewriter import Rewriting, rule


def _transposed(n: Node) -> tuple[int, ...]:
    assert isinstance(n.op, Transpose)
    return n.op.order


def _copied(n: Node) -> Expand:
    assert isinstance(n.op, Expand)
    return n.op


def _with_operand(n: Node, g: Rewriting, k: int, a: Ref, axes: str) -> Node:
    """Another operand in place of one, with axes of its own."""
    op, (ins, out) = cast("Any", n.op), g.labels(n)
    ins = (*ins[:k], axes, *ins[k + 1 :])
    labels = f"{','.join(ins)}->{out}" if isinstance(op, Einsum) else join_labels(ins, out)
    return replace(n, op=replace(op, labels=labels), args=(*n.args[:k], a, *n.args[k + 1 :]))


@rule(Attention)
def attend_transposed(n: Node, g: Rewriting) -> Node | None:
    """attention(transpose(x)) → attention(x) with labels reordered"""
    op = n.op
    assert isinstance(op, Attention)
    for k, a in enumerate(n.args):
        inner = g.producer(a, Transpose)
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
            args = (*n.args[:k], inner.args[0], *n.args[k + 1 :])
            return replace(n, op=new, args=args)
    return None


@rule(Elementwise, Einsum)
def absorb_transpose(n: Node, g: Rewriting) -> Node | None:
    """f(transpose(x)) → f(x) with labels reordered"""
    for k, a in enumerate(n.args):
        inner = g.producer(a, Transpose)
        if inner is not None:
            ins, _ = g.labels(n)
            was = sorted(zip(_transposed(inner), ins[k], strict=True))
            return _with_operand(n, g, k, inner.args[0], "".join(c for _, c in was))
    return None


@rule(Reduction, DiscountedSum)
def reduce_transpose(n: Node, g: Rewriting) -> Node | None:
    """Σ over axes of transpose(x) → Σ over other axes of x, where the rest keeps its order"""
    assert isinstance(n.op, (Reduction, DiscountedSum))
    inner = g.producer(n.args[0], Transpose)
    if inner is None:
        return None
    order = _transposed(inner)
    mine = n.op.axes if isinstance(n.op, Reduction) else (n.op.axis,)
    kept = [a for k, a in enumerate(order) if k not in mine]
    if kept != sorted(kept):
        return None
    axes = tuple(sorted(order[a] for a in mine))
    by = {"axes": axes} if isinstance(n.op, Reduction) else {"axis": axes[0]}
    return replace(n, op=replace(n.op, **by), args=inner.args)


@rule(Transpose)
def no_transpose(n: Node, g: Rewriting) -> Ref | None:
    """transpose(x) in the order it has → x"""
    assert isinstance(n.op, Transpose)
    return n.args[0] if n.op.order == tuple(range(len(n.op.order))) else None


@rule(Elementwise, Einsum)
def absorb_expand(n: Node, g: Rewriting) -> Node | None:
    """f(expand(x), y) → f(x, y) with fewer labels, where y has the axis too"""
    ins, _ = g.labels(n)
    for k, a in enumerate(n.args):
        inner = g.producer(a, Expand)
        if inner is None:
            continue
        src, wide = _copied(inner).labels.split("->")
        mine = {w: c for w, c in zip(wide, ins[k], strict=True)}
        small = "".join(mine[c] for c in src)
        gone = set(ins[k]) - set(small)
        elsewhere = set("".join(s for j, s in enumerate(ins) if j != k))
        if gone <= elsewhere:
            return _with_operand(n, g, k, inner.args[0], small)
    return None


@rule(Elementwise)
def hoist_expand(n: Node, g: Rewriting) -> Ref | None:
    """f(expand(x)) → expand(f(x)), where every operand is a copy along the axis"""
    ins, out = g.labels(n)
    inners = [g.producer(a, Expand) for a in n.args]
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
    if kept == set(out) or not any(inners) or not isinstance(n.type, Type):
        return None
    if any(
        i is not None and set(s) != kept & set(w)
        for s, w, i in zip(small, ins, inners, strict=True)
    ):
        return None
    narrow = "".join(c for c in out if c in kept)
    args = tuple(i.args[0] if i is not None else a for a, i in zip(n.args, inners, strict=True))
    op: Any = n.op
    inside = g.emit(
        replace(op, labels=join_labels(tuple(small), narrow)), args, n.domain, n.op.name
    )
    sizes = tuple(s for c, s in zip(out, n.type.shape, strict=True) if c not in kept)
    return g.emit(Expand(labels=f"{narrow}->{out}", sizes=sizes), (inside,), n.domain, "expand")


@rule(Expand)
def expand_constant(n: Node, g: Rewriting) -> Node | None:
    """expand(c) → a constant of that shape"""
    inner = g[n.args[0].name]
    if isinstance(inner.op, Const) and isinstance(n.type, Type):
        return replace(n, op=replace(inner.op, shape=n.type.shape), args=())
    return None


@rule(Elementwise)
def narrow_constant(n: Node, g: Rewriting) -> Node | None:
    """f(x, c copied) → f(x, c) with fewer labels"""
    ins, _ = g.labels(n)
    for k, a in enumerate(n.args):
        inner = g[a.name]
        if isinstance(inner.op, Const) and ins[k]:
            elsewhere = set("".join(s for j, s in enumerate(ins) if j != k))
            if set(ins[k]) <= elsewhere:
                c = g.emit(replace(inner.op, shape=()), (), Domain(), "const")
                return _with_operand(n, g, k, c, "")
    return None


@rule(Elementwise)
def constant_tensor(n: Node, g: Rewriting) -> Node | None:
    """f(constant tensors) → one constant tensor"""
    if not n.args or not isinstance(n.type, Type) or not n.type.shape:
        return None
    inners = [i for a in n.args if isinstance(i := g[a.name].op, Const)]
    if len(inners) < len(n.args):
        return None
    scalars = tuple(g.emit(replace(i, shape=()), (), Domain(), "const") for i in inners)
    op: Any = n.op
    one = g.emit(replace(op, labels=""), scalars, n.domain, n.op.name)
    return replace(
        n, op=Expand(labels="->" + "abcdefgh"[: n.type.rank], sizes=n.type.shape), args=(one,)
    )


@rule(Pick)
def pick_expand(n: Node, g: Rewriting) -> Ref | None:
    """pick(expand(x)) at a point of the copied axis → x"""
    assert isinstance(n.op, Pick)
    inner = g.producer(n.args[0], Expand)
    if inner is None or not _inside(n, g):
        return None
    src, wide = _copied(inner).labels.split("->")
    c = wide[n.op.axis]
    if c in src:
        return None
    rest = "".join(x for x in wide if x != c)
    if rest == src:
        return inner.args[0]
    new = [x for x in wide if x not in src]
    sizes = tuple(s for x, s in zip(new, _copied(inner).sizes, strict=True) if x != c)
    return g.emit(Expand(labels=f"{src}->{rest}", sizes=sizes), inner.args, n.domain, "expand")


def _inside(n: Node, g: Rewriting) -> bool:
    """Does `at` surely fall inside the axis?"""
    assert isinstance(n.op, Pick)
    at, size = n.op.at_, g.type(n.args[0]).shape[n.op.axis]
    if isinstance(at, Sym) and at.name in n.domain:
        r = n.domain[at.name]
        return r.hi == size and evaluate(r.lo, g.sizes) >= 0
    return isinstance(at, int) and isinstance(size, int) and 0 <= at < size


SHAPES = (
    no_transpose,
    attend_transposed,
    absorb_transpose,
    reduce_transpose,
    *DOMAINS,
    expand_constant,
    constant_tensor,
    narrow_constant,
    absorb_expand,
    hoist_expand,
    pick_expand,
)
