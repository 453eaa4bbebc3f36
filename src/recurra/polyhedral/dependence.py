"""Relations between the points of a reader and of its source, and their inverse.

y[t] = sum(x[t:min(t+3, T)])      t  ->  t, t+1, t+2        readers of x[q]:  max(0, q-2) <= t < q+1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from recurra.ir.expr import (
    TRUE,
    Expr,
    Product,
    Sym,
    all_of,
    any_of,
    compare,
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
    """The point of the source that is read, the condition on its slices, and the sliced dims.

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
    return tuple(point), all_of(*ties), sliced


def outside_condition(point: Sequence[Expr | int], source: Domain) -> Expr:
    """The condition that a point is outside a domain."""
    ends = zip(point, source, strict=True)
    return any_of(*(c for p, r in ends for c in (compare("<", p, r.lo), compare(">=", p, r.hi))))


@lru_cache(maxsize=1 << 16)
def is_feasible(sink: Domain, when: Expr | None) -> bool:
    """Tell whether the condition holds at any point, for some bounds."""
    return when is None or isl.satisfiable(all_of(*_points(sink, when), when))


def _points(sink: Domain, condition: Expr) -> list[Expr]:
    """The points of a domain, along the dims of a condition, for bounds of at least 1."""
    inside = [c for r in sink.of(symbols(condition)) for c in r.edges]
    bounds = symbols(all_of(condition, *inside)) - set(sink.dims)
    return [*inside, *(compare(">=", Sym(n), 1) for n in sorted(bounds))]


def always_inside(
    index: Sequence[Index],
    source: Domain,
    sink: Domain,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> bool:
    """Tell whether the index is inside the source at every point of the sink.

    For all values of the bounds that `sizes` lacks.
    """
    ends = [(r.dim, r.lo, r.hi) for r in sink]
    for e, r in zip(index, source, strict=True):
        if (r.dim, r.lo, r.hi) in ends and e == r.sym:
            continue
        first, last = (e.lo, e.hi) if isinstance(e, Slice) else (e, lin([(e, 1), (1, 1)]))
        if any(isinstance(x, Product) for y in (first, last) for x in walk(y)):
            return False
        outside = any_of(compare("<", first, r.lo), compare(">", last, r.hi))
        if isl.satisfiable(substitute(all_of(*_points(sink, outside), outside), sizes)):
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
    """Tell whether a condition on points of a source holds at each that is read, where `when` does.

    For all values of the bounds that `sizes` lacks; False if unsure.
    """
    point, ties, _ = point_read(index, source)
    violated = negate(substitute(condition, dict(zip(source.dims, point, strict=True))))
    violated = all_of(when, ties, violated)
    inside = [e for r in reader.of(symbols(violated)) for e in r.edges]
    violated = substitute(all_of(*inside, violated), sizes)
    return not any(isinstance(x, Product) for x in walk(violated)) and not isl.satisfiable(violated)


def readers(
    extent: Range, free: Sequence[Range], source: Domain, index: Sequence[Index], when: Expr = TRUE
) -> tuple[Expr | int, Expr | int]:
    """An interval lo:hi of the range `extent` that contains every reader of a point of the source.

    It is the tightest interval of them, or of a convex superset, that isl gives in closed form; or
    the whole range. It may contain points that do not read (strides, two free dims), which the
    caller masks. At a point without readers it is any legal one: r.lo <= lo <= hi <= r.hi.
    """
    points = [f"{isl.isl_text(x.lo)} <= {x.dim} < {isl.isl_text(x.hi)}" for x in (*source, *free)]
    relation = isl.index_constraints(index, source.dims)
    chosen = [] if when == TRUE else [isl.isl_text(when)]
    known = isl.mentioned(points) | {x.dim for x in (*source, *free)}
    bounds = sorted(isl.mentioned(relation + chosen) - known)  # of no dim here: at least 1
    constraints = tuple(points + relation + chosen + [f"{n} >= 1" for n in bounds])
    names = tuple(sorted(isl.mentioned(constraints) - {x.dim for x in free}))
    query = (extent.dim, tuple(x.dim for x in free), constraints, names)
    span = isl.span(*query) or isl.span(*query, hull=True)
    if span is None:
        return extent.lo, extent.hi
    lo, hi = map(isl.distribute, span)
    for start in (
        lo,
        minimum(lo, extent.hi),
        maximum(extent.lo, lo),
        minimum(maximum(extent.lo, lo), extent.hi),
    ):
        for stop in (hi, maximum(start, hi), maximum(start, minimum(hi, extent.hi))):
            if _legal((start, stop), extent, source, bounds):
                return start, stop
    return extent.lo, extent.hi


def _legal(
    ends: tuple[Expr | int, Expr | int], extent: Range, source: Domain, bounds: Sequence[str]
) -> bool:
    """Tell whether r.lo <= lo <= hi <= r.hi at every point of the source, for all bounds.

    Where r is empty, lo == hi is enough.
    """
    lo, hi = ends
    inside = [c for s in source for c in (compare(">=", s.sym, s.lo), compare("<", s.sym, s.hi))]
    every = {*bounds, *extent.mentions()}.union(*(s.mentions() for s in source)) - set(source.dims)
    inside += [compare(">=", Sym(n), 1) for n in sorted(every)]
    beyond = any_of(compare("<", lo, extent.lo), compare(">", lo, hi), compare(">", hi, extent.hi))
    empty = compare(">=", extent.lo, extent.hi)
    wrong = any_of(all_of(negate(empty), beyond), all_of(empty, compare("!=", lo, hi)))
    return not isl.satisfiable(all_of(*inside, wrong))
