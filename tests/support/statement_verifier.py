"""Verify that every place of every array is written at most once, and before it can be read.

Shares no code with the lowering to statements: places are exact sets of isl for known bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import chain

import islpy

from recurra.ir.expr import TRUE, Expr
from recurra.ir.graph import Ref
from recurra.ir.statement import Array, Statement, StatementGraph
from recurra.polyhedral import isl


def verify_statements(statements: StatementGraph, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the errors in statements for known bounds."""
    writes = (_verify_writes(a, statements, sizes) for a in statements.arrays.values())
    reads = (_verify_reads(s, statements, sizes) for s in statements.statements.values())
    return tuple(chain.from_iterable(chain(writes, reads)))


def _verify_writes(array: Array, graph: StatementGraph, sizes: Mapping[str, int]) -> Iterator[str]:
    """Check that an array is written in its domain, no place twice, and all of an output."""
    whole, writers = _places(array, sizes), graph.writers[array.name]
    written: list[isl.Set] = []
    for s in writers:
        m = _access(s, s.write, s.where, array, sizes)
        if not s.accumulates and not m.is_injective():
            yield f"{s.name} writes a place of {array.name} twice"
        written.append(m.range())
        if not written[-1].is_subset(whole):
            yield f"{s.name} writes {s.write} outside of {array.name}{array.domain}"
        for other, places in zip(writers, written[:-1], strict=False):
            if not places.is_disjoint(written[-1]):
                at = sample(places.intersect(written[-1]))
                yield f"{other.name} and {s.name} both write {array.name} at {at}"
    left = _unwritten(whole, written)
    if array.name in graph.outputs and not left.is_empty():
        yield f"no statement writes {array.name} at {sample(left)}"


def _verify_reads(
    statement: Statement, graph: StatementGraph, sizes: Mapping[str, int]
) -> Iterator[str]:
    """Check that every operand names an array, is inside its domain, and is written."""
    arrays = graph.arrays
    for k, a in enumerate(statement.args):
        if a.name not in arrays:
            yield f"{statement.name} reads {a}, and there is no array {a.name}"
            continue
        array = arrays[a.name]
        if len(a.index) != len(array.domain):
            yield f"{statement.name} reads {a}, and {a.name} has the dims {array.domain}"
            continue
        read = _access(statement, a, statement.condition(k), array, sizes).range()
        if not read.is_subset(_places(array, sizes)):
            yield f"{statement.name} reads {a} outside of {a.name}{array.domain}"
            continue
        made = (_access(w, w.write, w.where, array, sizes).range() for w in graph.writers[a.name])
        left = _unwritten(read, made)
        if not left.is_empty():
            place = sample(left)
            yield f"{statement.name} reads {a}, and no statement writes {a.name} at {place}"


def _unwritten(places: isl.Set, written: Iterable[isl.Set]) -> isl.Set:
    return reduce(lambda rest, more: rest.subtract(more), written, places)


def _places(array: Array, sizes: Mapping[str, int]) -> isl.Set:
    """The places of an array, its dims primed."""
    constraints = [*isl.box_constraints(array.domain, "'"), *_size_constraints(sizes)]
    return isl.make_set([f"{d}'" for d in array.domain.dims], constraints, tuple(sizes))


def _access(
    statement: Statement, ref: Ref, where: Expr, array: Array, sizes: Mapping[str, int]
) -> isl.Map:
    """The points of a statement at which `where` holds, each with the places that it touches."""
    places = [f"{d}'" for d in array.domain.dims]
    chosen = [] if where == TRUE else [isl.isl_text(where)]
    constraints = [
        *isl.box_constraints(statement.domain),
        *chosen,
        *isl.index_constraints(ref.index, places),
    ]
    return isl.make_map(
        statement.domain.dims, places, [*constraints, *_size_constraints(sizes)], tuple(sizes)
    )


def _size_constraints(sizes: Mapping[str, int]) -> list[str]:
    return [f"{n} = {v}" for n, v in sizes.items()]


def sample(points: isl.Set | isl.Map) -> dict[str, int] | None:
    """One point, by name, of a set or of a map's domain; None if it is empty."""
    if points.is_empty():
        return None
    s = points.domain() if isinstance(points, isl.Map) else points
    p = s.sample_point()
    return {
        str(s.get_dim_name(kind, k)): p.get_coordinate_val(kind, k).to_python()
        for kind in (islpy.dim_type.param, islpy.dim_type.set)
        for k in range(s.dim(kind))
    }
