"""The forms that a read takes once a dim is an axis: a part of the axis, or elements by number.

x[i]  x[i-1]  x[lo:hi]      a part of the axis
x[max(i-1,0)]               a part of it, with its first element repeated
x[2*i]  x[I-1-i]            elements taken by number
"""

from __future__ import annotations

from collections.abc import Mapping

from recurra.ir.expr import Expr, Ext, Sym, evaluate, lin, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.types import Range


def reads_once(ref: Ref, dim: str) -> bool:
    """Tell whether at most one index mentions the dim, and as a point.

    Not counted are loose ranges that end with it: they may be read whole.
    """
    hits = [e for e in ref.index if dim in index_symbols(e) and not _has_loose_end(e, dim)]
    return not hits or (len(hits) == 1 and not isinstance(hits[0], Slice))


def _has_loose_end(index: Index, dim: str) -> bool:
    """Tell whether an index is a padded loose range of which only the end may mention a dim."""
    if not isinstance(index, Slice) or not index.loose or index.pad is None:
        return False
    return dim not in symbols(index.lo)


def reads_along(graph: Graph, node: Node, dim: str, ref: Ref, member: bool) -> bool:
    """Tell whether `node`, with the axis, can read an operand, which has it if it is a `member`.

    It is read along the axis, or gathered.
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
    """Tell whether a range has the elements that an index reads along another."""
    c = shift(expr, mine.dim)
    if c is None:  # they are taken by number, from a range of one length
        return not extent.mentions() & graph.declared.keys()
    return not _is_beyond(lin([(c, 1), (mine.lo, 1)]), lin([(c, 1), (mine.hi, 1)]), extent)


def is_read_along(graph: Graph, ref: Ref, source: Node, dim: str) -> bool:
    """Tell whether a read of a source is possible once the source has the dim as an axis."""
    e = ref.index[source.domain.dims.index(dim)]
    if not isinstance(e, Slice):
        return True
    e = loose_range(e, source.domain[dim]) or e
    if e.step != 1 or e.pad is not None or (symbols(e.lo) | symbols(e.hi)) & graph.declared.keys():
        return False
    return not _is_beyond(e.lo, e.hi, source.domain[dim])


def loose_range(slice_: Slice, extent: Range) -> Slice | None:
    """Return all that a loose range may read, whatever its end; None if it leaves its source."""
    if not slice_.loose or slice_.pad is None or slice_.step != 1:
        return None
    hi = lin([(slice_.lo, 1), (slice_.pad, 1)])
    room = lin([(extent.hi, 1), (hi, -1)])
    inside = slice_.lo == extent.lo and isinstance(room, int) and room >= 0
    return Slice(slice_.lo, hi) if inside else None


def shift(index: Index, dim: str) -> Expr | int | None:
    """Return c of dim + c, c free of dim; None if the index is no such sum."""
    if isinstance(index, Slice):
        return None
    c = lin([(index, 1), (Sym(dim), -1)])
    return c if dim not in symbols(c) else None


def held_at_ends(
    expr: Expr | int, mine: Range, source: Range, sizes: Mapping[str, int]
) -> tuple[bool, Expr | int, Expr | int, bool] | None:
    """Return max(min(dim + c, last), first) along `mine` as a part of an axis: its start and size.

    The first and last values tell whether its first and its last element are repeated. None if the
    index has another form, or repeats an element more than once.
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
    final = lin([(source.hi, 1), (1, -1)])
    first, last = ends.get("max", source.lo), ends.get("min", final)
    before = lin([(first, 1), (c, -1), (mine.lo, -1)])
    after = lin([(c, 1), (mine.hi, 1), (last, -1), (1, -1)])
    places = (source.lo, first, last, final)
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
    """Tell whether lo:hi is known to leave the range, as only an empty one may."""
    room = (lin([(lo, 1), (extent.lo, -1)]), lin([(extent.hi, 1), (hi, -1)]))
    return any(isinstance(x, int) and x < 0 for x in room)
