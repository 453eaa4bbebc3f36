"""lift: reductions over growing ranges become recurrences, and back where only the end is read.

   g[t<T] = discounted_sum(r[t:T], gamma=γ)
→  g = r + γ·n;  n = merge(0, g[t+1], when=(t == T-1, t < T-1))

   s[t<T] = sum(x[0:t+1], axes=(0,))
→  s = x + p;    p = merge(0, s[t-1], when=(t == 0, t > 0))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recurra.ir.expr import Expr, compare
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.op import Op
from recurra.ir.types import Range, Type, is_shift
from recurra.ops import elementwise as el
from recurra.ops.control import Merge
from recurra.ops.reduction import Reduction, identity
from recurra.ops.scan import DiscountedSum
from recurra.ops.source import Const
from recurra.rewrite.rule import Rewriting, apply, rule


def lift(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Quadratic work becomes linear; no subtraction is introduced, so nothing cancels."""
    return apply(graph, (lift_discounted, lift_reduction), sizes)


def _grows(n: Node, g: Rewriting, axis: int) -> tuple[Range, int, Ref] | None:
    """(range, direction, identity read) if the axis is 0:t+1 (+1) or t:T (-1) of a dim."""
    (a,) = n.args
    slices = [k for k, e in enumerate(a.index) if isinstance(e, Slice)]
    if axis >= len(slices):
        return None
    k = slices[axis]
    s, r = a.index[k], g.source(a).domain.ranges[k]
    if not isinstance(s, Slice) or s.step != 1 or s.pad is not None or r.dim not in n.domain:
        return None
    if any(r.dim in index_symbols(e) for j, e in enumerate(a.index) if j != k):
        return None  # what is read at t-1 is not a part of what is read at t
    mine = n.domain[r.dim]
    point = Ref(a.name, (*a.index[:k], r.sym, *a.index[k + 1 :]))
    if is_shift(s.lo, r.dim) == 0 and s.hi == mine.hi == r.hi:
        return mine, -1, point
    if is_shift(s.hi, r.dim) == 1 and s.lo == mine.lo == r.lo:
        return mine, 1, point
    return None


def _neighbour(n: Node, g: Rewriting, r: Range, direction: int, neutral: float) -> Ref:
    """The value of `n` one step behind in its direction; `neutral` at the first point."""
    assert isinstance(n.type, Type)
    start = g.emit(
        Const(value=neutral, dtype=n.type.dtype, shape=n.type.shape), (), n.domain, "start"
    )
    edge: Expr | int = r.lo if direction > 0 else _minus_one(r.hi)
    first = compare("==", r.sym, edge)
    later = compare(">" if direction > 0 else "<", r.sym, edge)
    step = tuple(x.sym - direction if x.dim == r.dim else x.sym for x in n.domain)
    merge = Node(
        g.fresh(n.name + ("_before" if direction > 0 else "_after")),
        Merge(when=(first, later)),
        (start, Ref(n.name, step)),
        n.domain,
        n.type,
        n.loc,
    )
    g.put(merge)
    return g.read(merge.name)


def _minus_one(e: Any) -> Expr | int:
    return e - 1


@rule(DiscountedSum)
def lift_discounted(n: Node, g: Rewriting) -> Node | None:
    """Σₖ γᵏ x[t+k] over t:T → x[t] + γ · y[t+1]"""
    assert isinstance(n.op, DiscountedSum)
    found = _grows(n, g, n.op.axis)
    if found is None or found[1] > 0:
        return None
    r, direction, point = found
    assert isinstance(n.type, Type)
    after = _neighbour(n, g, r, direction, identity("add", n.type.dtype))
    gamma = g.emit(Const(value=n.op.gamma, dtype=n.type.dtype), (), n.domain, "gamma")
    labels = _scalar_labels(n.type.rank)
    scaled = g.emit(el.Mul(labels=labels), (gamma, after), n.domain, "discounted")
    return replace(n, op=el.Add(), args=(point, scaled))


def _scalar_labels(rank: int) -> str:
    axes = "abcdefghijkl"[:rank]
    return f",{axes}->{axes}" if rank else ""


@rule(Reduction)
def lift_reduction(n: Node, g: Rewriting) -> Node | None:
    """x[0] ∘ .. ∘ x[t] over 0:t+1 (or t:T) → x[t] ∘ y[t-1] (or y[t+1])"""
    assert isinstance(n.op, Reduction)
    if n.op.monoid is None or 0 not in n.op.axes or len(n.args[0].slices) != 1:
        return None
    found = _grows(n, g, 0)
    if found is None:
        return None
    r, direction, point = found
    rest = tuple(a - 1 for a in n.op.axes if a)
    part = g.emit(replace(n.op, axes=rest), (point,), n.domain, n.op.name) if rest else point
    assert isinstance(n.type, Type)
    before = _neighbour(n, g, r, direction, identity(n.op.monoid, n.type.dtype))
    join: Op = Op.registry[n.op.monoid]()
    return replace(n, op=join, args=(part, before))
