"""Dependences: which statement reads what another one writes, and at which points.

Values are assigned once, so every dependence leads from a writer of an array to a reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recurra.ir.expr import TRUE, Expr, both, compare, lin, maximum, minimum, substitute, symbols
from recurra.ir.frozen import Frozen
from recurra.ir.graph import Index, Ref, Slice
from recurra.ir.statement import Array, Statement, StatementGraph
from recurra.ir.types import is_shift
from recurra.polyhedral.dependence import happens


@dataclass(frozen=True)
class Dependence(Frozen):
    """Operand `k` of `sink` is `ref`, of an array that `source` writes.

    At a point of the sink where `where` holds, it needs the points `index` of the source: one
    index for each dim of the source, a range where it needs several.
    """

    sink: str
    source: str
    ref: Ref
    k: int
    index: tuple[Index, ...]
    where: Expr = TRUE


def dependences(graph: StatementGraph) -> Iterator[Dependence]:
    """Every dependence between statements, those too that no point has."""
    for s in graph.statements.values():
        for k, a in enumerate(s.args):
            array, writers = graph.arrays[a.name], graph.writers[a.name]
            for w in writers:
                whole = a.name in graph.whole
                yield _identity(s, w, a, k) if whole else _partial(s, w, a, k, array)


def real_dependences(graph: StatementGraph) -> list[Dependence]:
    """The dependences that some point has, for some bounds."""
    domains = {s.name: s.domain for s in graph.statements.values()}
    return [d for d in dependences(graph) if d.where == TRUE or happens(domains[d.sink], d.where)]


def _identity(reader: Statement, writer: Statement, ref: Ref, index: int) -> Dependence:
    """A dependence on a statement that writes each place at its own point."""
    return Dependence(reader.name, writer.name, ref, index, ref.index, reader.condition(index))


def _partial(
    reader: Statement, writer: Statement, ref: Ref, position: int, array: Array
) -> Dependence:
    """A dependence on a statement that writes some of an array, or adds up over other dims."""
    found: dict[str, Index] = {}
    ties: list[Expr] = [reader.condition(position)]
    for place, e, whole in zip(writer.places, ref.index, array.domain, strict=True):
        dim, shift = _dim_of(place, writer)
        if dim is None:
            ties += _meets(e, place, lin([(place, 1), (1, 1)]))
            continue
        r = writer.domain[dim]
        lo, hi = lin([(r.lo, 1), (shift, 1)]), lin([(r.hi, 1), (shift, 1)])
        if (lo, hi) != (whole.lo, whole.hi):
            ties += _meets(e, lo, hi)
            e = _clipped(e, lo, hi)
        found[dim] = _moved(e, -shift)
    index = tuple(found.get(r.dim, Slice(r.lo, r.hi)) for r in writer.domain)
    if writer.where != TRUE:
        points = {
            d: e for d, e in zip(writer.domain.dims, index, strict=True) if not isinstance(e, Slice)
        }
        if symbols(writer.where) & set(writer.domain.dims) <= points.keys():
            ties.append(substitute(writer.where, points))
    return Dependence(reader.name, writer.name, ref, position, index, both(*ties))


def _dim_of(place: Expr | int, statement: Statement) -> tuple[str | None, int]:
    """The dim and the shift of a place that is a dim plus a constant; None: it has no dim."""
    for r in statement.domain:
        shift = is_shift(place, r.dim)
        if shift is not None:
            return r.dim, shift
    return None, 0


def _meets(index: Index, lo: Expr | int, hi: Expr | int) -> list[Expr]:
    """The conditions under which an index asks for a place in lo..hi-1."""
    if isinstance(index, Slice):
        return [compare("<", index.lo, hi), compare(">", index.hi, lo)]
    return [compare(">=", index, lo), compare("<", index, hi)]


def _clipped(index: Index, lo: Expr | int, hi: Expr | int) -> Index:
    """The part of a range within the places lo..hi-1."""
    if not isinstance(index, Slice) or index.step != 1:
        return index
    return Slice(maximum(index.lo, lo), minimum(index.hi, hi))


def _moved(index: Index, c: int) -> Index:
    if not c:
        return index
    if isinstance(index, Slice):
        return Slice(lin([(index.lo, 1), (c, 1)]), lin([(index.hi, 1), (c, 1)]), index.step)
    return lin([(index, 1), (c, 1)])
