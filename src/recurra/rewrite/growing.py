"""Ranges that grow by one point per step of a dim, 0:t+1 or t:T, and their value a step before."""

from __future__ import annotations

from typing import Any

from recurra.ir.expr import Expr, compare
from recurra.ir.graph import Node, Ref, Slice, index_symbols
from recurra.ir.types import Range, Type, is_shift
from recurra.ops.control import Merge
from recurra.ops.source import Const
from recurra.rewrite.rule import Rewriting


def grows(n: Node, a: Ref, g: Rewriting, axis: int) -> tuple[Range, int, Ref] | None:
    """(range, direction, read of its last point) if an axis is 0:t+1 (+1) or t:T (-1) of a dim."""
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


def neighbour(n: Node, g: Rewriting, r: Range, direction: int, neutral: float) -> Ref:
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
