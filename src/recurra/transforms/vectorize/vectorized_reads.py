"""Reads once a dim is an axis: in its place, as a range, or by elements' numbers.

x[i]  x[i-1]  x[lo:hi]      a part of the axis
x[max(i-1,0)]               a part of it, and its first element once more
x[2*i]  x[I-1-i]            elements of it that are taken
"""

from __future__ import annotations

from collections.abc import Mapping

from recurra.ir.expr import Expr, Ext, Sym, evaluate, lin, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.types import Range


def reads_once(ref: Ref, dim: str) -> bool:
    """Tell whether at most one index is an expression of the dim.

    A range that grows with it may be read whole, where anything will do past its end.
    """
    hits = [e for e in ref.index if dim in index_symbols(e) and not _ends_at(e, dim)]
    return not hits or (len(hits) == 1 and not isinstance(hits[0], Slice))


def _ends_at(index: Index, dim: str) -> bool:
    """Tell whether a range ends where `dim` says, loosely."""
    return (
        isinstance(index, Slice)
        and index.loose
        and index.pad is not None
        and dim not in symbols(index.lo)
    )


def reads_along(graph: Graph, node: Node, dim: str, ref: Ref, member: bool) -> bool:
    """Tell whether `node`, with the axis, can read an operand, which has it if it is a `member`.

    It is read along the axis, or as a range that is gathered.
    """
    source = graph[ref.name]
    for e, r in zip(ref.index, source.domain, strict=True):
        if dim not in index_symbols(e):
            continue
        if isinstance(e, Slice):
            if loose_range(e, r) is None:
                return False
            continue
        if member and r.dim != dim:  # x[0:T,t] along t: a diagonal
            return False
        if not member and any(r.dim in symbols(s) for s in source.type.shape):
            return False
        if not _has_elements(graph, e, node.domain[dim], r):
            return False
    return True


def _has_elements(graph: Graph, expr: Expr | int, mine: Range, extent: Range) -> bool:
    """Tell whether a range has the elements that an index asks for along another."""
    c = shift(expr, mine.dim)
    if c is None:  # they are taken by their numbers, of all there are
        return not extent.mentions() & graph.declared.keys()
    return not _is_beyond(lin([(c, 1), (mine.lo, 1)]), lin([(c, 1), (mine.hi, 1)]), extent)


def is_read_along(graph: Graph, ref: Ref, source: Node, dim: str) -> bool:
    """Tell whether a reader can say what it reads of a source that has the dim as an axis."""
    e = ref.index[source.domain.dims.index(dim)]
    if not isinstance(e, Slice):
        return True
    e = loose_range(e, source.domain[dim]) or e
    if e.step != 1 or e.pad is not None or (symbols(e.lo) | symbols(e.hi)) & graph.declared.keys():
        return False
    return not _is_beyond(e.lo, e.hi, source.domain[dim])


def loose_range(slice_: Slice, extent: Range) -> Slice | None:
    """All that a loose range may read, whatever its end; None where that is not there."""
    if not slice_.loose or slice_.pad is None or slice_.step != 1:
        return None
    hi = lin([(slice_.lo, 1), (slice_.pad, 1)])
    room = lin([(extent.hi, 1), (hi, -1)])
    return (
        Slice(slice_.lo, hi)
        if slice_.lo == extent.lo and isinstance(room, int) and room >= 0
        else None
    )


def shift(index: Index, dim: str) -> Expr | int | None:
    """c of dim + c, c free of dim; None where the index is no such sum."""
    if isinstance(index, Slice):
        return None
    c = lin([(index, 1), (Sym(dim), -1)])
    return c if dim not in symbols(c) else None


def held_at_ends(
    expr: Expr | int, mine: Range, source: Range, sizes: Mapping[str, int]
) -> tuple[bool, Expr | int, Expr | int, bool] | None:
    """max(min(dim + c, last), first) along `mine` as a part of an axis: its start and its size.

    Also whether its first element comes once more ahead of it, and its last once more behind it.
    None where the index is another, or leaves `first` to `last` by more than one point.
    """
    ends, inner = dict[str, Expr | int](), expr
    while isinstance(inner, Ext):
        moving = [x for x in inner.args if mine.dim in symbols(x)]
        rest = [x for x in inner.args if mine.dim not in symbols(x)]
        if len(moving) != 1 or len(rest) != 1 or inner.op in ends:
            return None
        ends[inner.op], inner = rest[0], moving[0]
    c = shift(inner, mine.dim)
    if c is None:
        return None
    first = ends.get("max", source.lo)
    last = ends.get("min", lin([(source.hi, 1), (1, -1)]))
    before = lin([(first, 1), (c, -1), (mine.lo, -1)])
    after = lin([(c, 1), (mine.hi, 1), (last, -1), (1, -1)])
    places = (source.lo, first, last, lin([(source.hi, 1), (1, -1)]))
    if set().union(*map(symbols, (before, after, *places))) - sizes.keys():
        return None
    at = [evaluate(x, sizes) for x in places]
    if at != sorted(at):  # what a branch that is not taken reads may be past the axis
        return None
    counts = [max(0, evaluate(n, sizes)) for n in (before, after)]
    if max(counts) > 1 or sum(counts) >= mine.size(sizes):
        return None
    start = lin([(c, 1), (mine.lo, 1), (counts[0], 1), (source.lo, -1)])
    size = lin([(mine.hi, 1), (mine.lo, -1), (sum(counts), -1)])
    return counts[0] == 1, start, size, counts[1] == 1


def _is_beyond(lo: Expr | int, hi: Expr | int, extent: Range) -> bool:
    """Tell whether lo:hi surely leaves the range, as only an empty one may."""
    room = (lin([(lo, 1), (extent.lo, -1)]), lin([(extent.hi, 1), (hi, -1)]))
    return any(isinstance(x, int) and x < 0 for x in room)
