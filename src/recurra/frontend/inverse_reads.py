"""Inverse reads, for gradients: the points of an equation that read a given point of its source.

y[u<U] = f(x[2*u])        x[t] is read at u = t // 2, where t == 2 * (t // 2)
y[t<T] = f(x[t//2])       x[q] is read at t = 2 * q and at t = 2 * q + 1
y[t<T] = f(x[t:T])        x[q] is read at every t of 0:q+1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from recurra.analysis.graph_builder import GraphBuilder
from recurra.cost.thresholds import MAX_READERS
from recurra.frontend.gradient_paths import without_implied
from recurra.ir.dims import Role
from recurra.ir.expr import TRUE, Expr, Ext, Sym, all_of, between, compare, lin, substitute, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.types import Domain, Range, is_shift
from recurra.polyhedral import isl
from recurra.polyhedral.dependence import readers


@dataclass(frozen=True)
class Inverse:
    """(φ∩ψ)⁻¹ of one read: the reader's point, given the source's point q and the free dims."""

    source: Domain
    free: tuple[Range, ...]  # dims of the reader that q leaves free, named unlike dims of q
    fixed: dict[str, Expr | int]  # dims of the reader that q determines: p = q - c
    by: dict[str, Expr | int]  # the value of every dim of the reader
    ref: Ref  # the read at that point
    when: Expr  # the condition under which the reader reads there
    inside: Expr = TRUE  # the condition that the reader has the point, along dims not in `fixed`

    @property
    def ranges(self) -> dict[str, Range]:
        return {r.dim: r for r in (*self.source, *self.free)}


def invert(
    builder: GraphBuilder, graph: Graph, node: Node, index: int, when: Expr
) -> list[Inverse]:
    """Invert operand `index` of `node`, at the points of `node` where a condition holds.

    If at most a few points along a dim can read a point of the source, there is an inverse for each
    of them, with conditions under which it exists; otherwise the dim is free.
    """
    ref, source = node.args[index], graph[node.args[index].name].domain
    fixed = _fixed(node.domain, ref, source)
    left = (r for r in node.domain if r.dim not in fixed)
    free = {r.dim: _distinct(builder, r, source, node.domain) for r in left}
    by: dict[str, Expr | int] = {**fixed, **{p: r.sym for p, r in free.items()}}
    chosen = all_of(when, merge_condition(node, index) or TRUE)
    whole = Inverse(source, tuple(free.values()), fixed, by, ref.at(by), substitute(chosen, by))
    few = {p: found for p, r in free.items() if (found := _few(whole, r))}
    out: list[Inverse] = []
    for points in product(*few.values()):
        at = {**by, **dict(zip(few, (e for e, _ in points), strict=True))}
        rest = tuple(r for p, r in free.items() if p not in few)
        there, inside = substitute(chosen, at), all_of(*(c for _, c in points))
        there = without_implied(there, source) if few else there
        out.append(Inverse(source, rest, fixed, at, ref.at(at), there, inside))
    return out


def _few(inverse: Inverse, extent: Range) -> list[tuple[Expr | int, Expr]]:
    """The points along a dim that may read a point of the source, with conditions that they exist.

    Empty if there may be more than MAX_READERS.
    """
    lo, hi = readers(extent, inverse.free, inverse.source, inverse.ref.index, inverse.when)
    lo = _unclamped(lo, extent)
    count = lin([(hi, 1), (lo, -1)])
    named = symbols(lo) | symbols(hi) | symbols(extent.lo) | symbols(extent.hi)
    bounds = tuple(compare(">=", Sym(n), 1) for n in sorted(named - set(inverse.source.dims)))

    def holds(condition: Expr) -> bool:
        return isl.always(condition, inverse.source, bounds)

    limit = 1 if inverse.ref.slices else MAX_READERS  # reads by slices stay sums over ranges
    found = next((n for n in range(1, limit + 1) if holds(compare("<=", count, n))), 0)
    points = [lin([(lo, 1), (k, 1)]) for k in range(found)]
    ends = (between(e, extent.lo, extent.hi) for e in points)
    inside = [all_of(*(c for c in pair if not holds(c))) for pair in ends]
    return list(zip(points, inside, strict=True))


def _unclamped(lo: Expr | int, extent: Range) -> Expr | int:
    """Drop the clamp of a lower end: t-2 of max(t-2,0), since nothing reads outside the range.

    The scheduler then sees a constant distance.
    """
    rest = [a for a in lo.args if a not in (extent.lo, extent.hi)] if isinstance(lo, Ext) else []
    return _unclamped(rest[0], extent) if len(rest) == 1 else lo


def _fixed(domain: Domain, ref: Ref, source: Domain) -> dict[str, Expr | int]:
    """The dims of the reader that the point of the source determines: p = q - c."""
    out: dict[str, Expr | int] = {}
    for e, r in zip(ref.index, source, strict=True):
        if isinstance(e, Slice):
            continue
        for p in domain.dims:
            c = is_shift(e, p)
            if c is not None and p not in out:
                out[p] = r.sym - c
    return out


def _distinct(builder: GraphBuilder, extent: Range, source: Domain, reader: Domain) -> Range:
    """The range of a dim of the reader, renamed to an adjoint dim if the source has the dim too."""
    if extent.dim not in source:
        return extent
    for d in builder.dims:
        is_adjoint = d.role is Role.ADJOINT and d.parent == extent.dim
        same = (d.range.lo, d.range.hi) == (extent.lo, extent.hi)
        if is_adjoint and same and d.name not in source and d.name not in reader:
            return d.range
    graph = Graph(builder.nodes, (), tuple(builder.dims))
    adjoint = graph.fresh_dim(Role.ADJOINT, extent.dim, extent.hi, taken=builder.bounds)
    adjoint = replace(adjoint, range=replace(adjoint.range, lo=extent.lo))
    builder.dims.append(adjoint)
    return adjoint.range
