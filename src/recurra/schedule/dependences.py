"""Dependences between statements: who writes the operands of whom, at which points.

Values are assigned once, so every dependence is a read after a write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recurra.ir.expr import TRUE, Expr, all_of, compare, lin, maximum, minimum, substitute, symbols
from recurra.ir.frozen import Frozen
from recurra.ir.graph import Index, Ref, Slice
from recurra.ir.statement import Array, Statement, StatementGraph
from recurra.ir.types import is_shift
from recurra.polyhedral.dependence import is_feasible


@dataclass(frozen=True)
class Dependence(Frozen):
    """Operand `k` of `sink` is `ref`, a read of an array that `source` writes.

    At points where `where` holds, the sink needs the points `index` of the source: one index for
    each dim of the source, a range if it needs several.
    """

    sink: str
    source: str
    ref: Ref
    k: int
    index: tuple[Index, ...]
    where: Expr = TRUE


def dependences(graph: StatementGraph) -> Iterator[Dependence]:
    """Every dependence between statements, including those that no point has."""
    for s in graph.statements.values():
        for k, a in enumerate(s.args):
            for w in graph.writers[a.name]:
                if a.name in graph.whole:  # each place is written at its own point
                    yield Dependence(s.name, w.name, a, k, a.index, s.condition(k))
                else:
                    yield _partial(s, w, a, k, graph.arrays[a.name])


def real_dependences(graph: StatementGraph) -> list[Dependence]:
    """The dependences that some point has, for some bounds."""
    domains = {s.name: s.domain for s in graph.statements.values()}
    return [
        d for d in dependences(graph) if d.where == TRUE or is_feasible(domains[d.sink], d.where)
    ]


def _partial(
    reader: Statement, writer: Statement, ref: Ref, position: int, array: Array
) -> Dependence:
    """The dependence on a statement that writes part of an array, or adds up over other dims."""
    by_dim: dict[str, Index] = {}
    ties: list[Expr] = [reader.condition(position)]
    for place, e, whole in zip(writer.places, ref.index, array.domain, strict=True):
        dim, shift = _dim_of(place, writer)
        if dim is None:
            ties += _overlap(e, place, lin([(place, 1), (1, 1)]))
            continue
        r = writer.domain[dim]
        lo, hi = lin([(r.lo, 1), (shift, 1)]), lin([(r.hi, 1), (shift, 1)])
        if (lo, hi) != (whole.lo, whole.hi):
            ties += _overlap(e, lo, hi)
            if isinstance(e, Slice) and e.step == 1:
                e = Slice(maximum(e.lo, lo), minimum(e.hi, hi))
        by_dim[dim] = shift_index(e, -shift)
    index = tuple(by_dim.get(r.dim, Slice(r.lo, r.hi)) for r in writer.domain)
    if writer.where != TRUE:
        points = {
            d: e for d, e in zip(writer.domain.dims, index, strict=True) if not isinstance(e, Slice)
        }
        if symbols(writer.where) & set(writer.domain.dims) <= points.keys():
            ties.append(substitute(writer.where, points))
    return Dependence(reader.name, writer.name, ref, position, index, all_of(*ties))


def _dim_of(place: Expr | int, statement: Statement) -> tuple[str | None, int]:
    """The dim and the shift of a place that is a dim plus a constant; None if it has no dim."""
    for r in statement.domain:
        shift = is_shift(place, r.dim)
        if shift is not None:
            return r.dim, shift
    return None, 0


def _overlap(index: Index, lo: Expr | int, hi: Expr | int) -> list[Expr]:
    """The conditions under which an index reads a place in lo..hi-1."""
    if isinstance(index, Slice):
        return [compare("<", index.lo, hi), compare(">", index.hi, lo)]
    return [compare(">=", index, lo), compare("<", index, hi)]


def shift_index(index: Index, by: int) -> Index:
    """Return the index plus a constant."""
    if isinstance(index, Slice):
        return replace(index, lo=lin([(index.lo, 1), (by, 1)]), hi=lin([(index.hi, 1), (by, 1)]))
    return lin([(index, 1), (by, 1)])
