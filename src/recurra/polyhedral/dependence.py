"""A read as a relation between the points of its reader and its source, and the inverse.

y[t] = sum(x[t:min(t+3, T)])      t  ->  t, t+1, t+2        readers of x[q]:  max(0, q-2) <= t < q+1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from recurra.ir.expr import (
    TRUE,
    Expr,
    Ext,
    Lin,
    Product,
    Sym,
    both,
    compare,
    either,
    lin,
    maximum,
    minimum,
    mod,
    negate,
    substitute,
    symbols,
    walk,
)
from recurra.ir.graph import Index, Slice
from recurra.ir.types import Domain, Range
from recurra.polyhedral import isl


def point_read(
    index: Sequence[Index], source: Domain
) -> tuple[tuple[Expr | int, ...], Expr, list[int]]:
    """The point of the source that is asked for, what ties it to its reader, and the sliced dims.

    A sliced dim t is a variable of its own, named t'; the others depend on the reader's point.
    """
    point: list[Expr | int] = []
    ties: list[Expr] = []
    sliced: list[int] = []
    for k, (e, r) in enumerate(zip(index, source, strict=True)):
        if not isinstance(e, Slice):
            point.append(e)
            continue
        q = Sym(f"{r.dim}'")
        point.append(q)
        sliced.append(k)
        ties += [compare(">=", q, e.lo), compare("<", q, e.hi)]
        if e.step != 1:
            ties.append(compare("==", mod(lin([(q, 1), (e.lo, -1)]), e.step), 0))
    return tuple(point), both(*ties), sliced


def outside_condition(point: Sequence[Expr | int], source: Domain) -> Expr:
    """The condition that a point is no point of a domain."""
    ends = [
        (compare("<", p, r.lo), compare(">=", p, r.hi)) for p, r in zip(point, source, strict=True)
    ]
    return either(*(c for pair in ends for c in pair))


@lru_cache(maxsize=1 << 16)
def happens(sink: Domain, when: Expr | None) -> bool:
    """Does the condition hold at any point, for some bounds?"""
    return when is None or isl.satisfiable(both(*_points(sink, when), when))


def _points(sink: Domain, what: Expr) -> list[Expr]:
    """The points of a domain, as far as `what` tells them apart, for bounds of at least 1."""
    used = sink.of(symbols(what))
    inside = [c for r in used for c in r.edges]
    bounds = symbols(both(what, *inside)) - set(sink.dims)
    return [*inside, *(compare(">=", Sym(n), 1) for n in sorted(bounds))]


def always_inside(
    index: Sequence[Index],
    source: Domain,
    sink: Domain,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> bool:
    """Is the index inside the source at every point of the sink?

    For the bounds that are given, and whatever the others.
    """
    ends = [(r.dim, r.lo, r.hi) for r in sink]
    for e, r in zip(index, source, strict=True):
        if (r.dim, r.lo, r.hi) in ends and e == r.sym:
            continue
        first, last = (e.lo, e.hi) if isinstance(e, Slice) else (e, lin([(e, 1), (1, 1)]))
        if any(isinstance(x, Product) for y in (first, last) for x in walk(y)):
            return False
        wrong = either(compare("<", first, r.lo), compare(">", last, r.hi))
        if isl.satisfiable(substitute(both(*_points(sink, wrong), wrong), sizes)):
            return False
    return True


def holds_where_read(
    condition: Expr,
    index: Sequence[Index],
    source: Domain,
    reader: Domain,
    when: Expr,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> bool:
    """Does a condition on points of a source hold at each that is asked for, where `when` does?

    For the bounds that are given, and whatever the others; False when unsure.
    """
    point, ties, _ = point_read(index, source)
    wrong = negate(substitute(condition, dict(zip(source.dims, point, strict=True))))
    found = both(when, ties, wrong)
    inside = [e for r in reader.of(symbols(found)) for e in r.edges]
    found = substitute(both(*inside, found), sizes)
    return not any(isinstance(x, Product) for x in walk(found)) and not isl.satisfiable(found)


def readers(
    extent: Range, free: Sequence[Range], source: Domain, index: Sequence[Index], when: Expr = TRUE
) -> tuple[Expr | int, Expr | int]:
    """lo:hi, a part of the range of `extent`, that holds every reader of a point of the source.

    It is the tightest interval of them, or of a convex set around them, that isl gives in closed
    form, else all of the range. Readers may have holes (strides, two free dims) and need not be all
    of it: the caller masks what is no reader.
    At a point without readers it holds anything legal: r.lo <= lo <= hi <= r.hi.
    """
    points = [f"{isl.text(x.lo)} <= {x.dim} < {isl.text(x.hi)}" for x in (*source, *free)]
    relation = isl.index_constraints(index, source.dims)
    chosen = [] if when == TRUE else [isl.text(when)]
    mine = isl.mentioned(points) | {x.dim for x in (*source, *free)}
    own = sorted(isl.mentioned(relation + chosen) - mine)  # bounds of no dim: at least 1
    constraints = tuple(points + relation + chosen + [f"{n} >= 1" for n in own])
    names = tuple(sorted(isl.mentioned(constraints) - {x.dim for x in free}))
    asked = (extent.dim, tuple(x.dim for x in free), constraints, names)
    found = isl.span(*asked) or isl.span(*asked, hull=True)
    if found is None:
        return extent.lo, extent.hi
    lo, hi = (_inward(e) for e in found)
    for start in (
        lo,
        minimum(lo, extent.hi),
        maximum(extent.lo, lo),
        minimum(maximum(extent.lo, lo), extent.hi),
    ):
        for stop in (hi, maximum(start, hi), maximum(start, minimum(hi, extent.hi))):
            if _legal((start, stop), extent, source, own):
                return start, stop
    return extent.lo, extent.hi


def _inward(expr: Expr | int) -> Expr | int:
    """min(a, b) + c as min(a+c, b+c)."""
    match expr:
        case Lin(terms=((Ext(op=op, args=args), 1),), const=c):
            return (minimum if op == "min" else maximum)(*(lin([(a, 1), (c, 1)]) for a in args))
        case _:
            return expr


def _legal(
    ends: tuple[Expr | int, Expr | int], extent: Range, source: Domain, bounds: Sequence[str]
) -> bool:
    """Is r.lo <= lo <= hi <= r.hi at every point of the source, whatever the bounds?

    Where r is empty, lo == hi is enough.
    """
    lo, hi = ends
    inside = [c for s in source for c in (compare(">=", s.sym, s.lo), compare("<", s.sym, s.hi))]
    every = {*bounds, *extent.mentions()}.union(*(s.mentions() for s in source)) - set(source.dims)
    inside += [compare(">=", Sym(n), 1) for n in sorted(every)]
    beyond = either(compare("<", lo, extent.lo), compare(">", lo, hi), compare(">", hi, extent.hi))
    empty = compare(">=", extent.lo, extent.hi)
    wrong = either(both(negate(empty), beyond), both(empty, compare("!=", lo, hi)))
    return not isl.satisfiable(both(*inside, wrong))
