"""How an index is read once a dim is an axis: in its place, as a range, or by elements' numbers.

x[i]  x[i-1]  x[lo:hi]      a part of the axis
x[max(i-1,0)]  x[I-1-i]     elements of it that are taken
"""

from __future__ import annotations

from typing import Any

from recurra.ir.expr import Expr, Sym, lin, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.types import Range


def reads_once(a: Ref, dim: str) -> bool:
    """Tell whether at most one index is an expression of the dim.

    A range that grows with it may be read whole, where anything will do past its end.
    """
    hits = [e for e in a.index if dim in index_symbols(e) and not _ends_at(e, dim)]
    return not hits or (len(hits) == 1 and not isinstance(hits[0], Slice))


def _ends_at(e: Index, dim: str) -> bool:
    """Tell whether a range ends where `dim` says, loosely."""
    return isinstance(e, Slice) and e.loose and e.pad is not None and dim not in symbols(e.lo)


def reads_along(graph: Graph, n: Node, dim: str, a: Ref, member: bool) -> bool:
    """Tell whether `n`, with the axis, can read an operand, which has it, too, if it is a `member`.

    It is read along the axis, or as a range that is gathered.
    """
    source = graph[a.name]
    for e, r in zip(a.index, source.domain, strict=True):
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
        if not _has_elements(graph, e, n.domain[dim], r):
            return False
    return True


def _has_elements(graph: Graph, e: Expr | int, mine: Range, r: Range) -> bool:
    """Tell whether a range has the elements that an index asks for along another."""
    c = shift(e, mine.dim)
    if c is None:  # they are taken by their numbers, of all there are
        return not r.mentions() & graph.declared.keys()
    return not _is_beyond(lin([(c, 1), (mine.lo, 1)]), lin([(c, 1), (mine.hi, 1)]), r)


def is_read_along(graph: Graph, a: Ref, source: Node, dim: str) -> bool:
    """Tell whether a reader can say what it reads of a source that has the dim as an axis."""
    e = a.index[source.domain.dims.index(dim)]
    if not isinstance(e, Slice):
        return True
    e = loose_range(e, source.domain[dim]) or e
    if e.step != 1 or e.pad is not None or (symbols(e.lo) | symbols(e.hi)) & graph.declared.keys():
        return False
    return not _is_beyond(e.lo, e.hi, source.domain[dim])


def loose_range(e: Slice, r: Range) -> Slice | None:
    """All that a loose range may read, whatever its end; None where that is not there."""
    if not e.loose or e.pad is None or e.step != 1:
        return None
    hi = lin([(e.lo, 1), (e.pad, 1)])
    room = lin([(r.hi, 1), (hi, -1)])
    return Slice(e.lo, hi) if e.lo == r.lo and isinstance(room, int) and room >= 0 else None


def shift(e: Any, dim: str) -> Expr | int | None:
    """c of dim + c, c free of dim; None where the index is no such sum."""
    if isinstance(e, Slice):
        return None
    c = lin([(e, 1), (Sym(dim), -1)])
    return c if dim not in symbols(c) else None


def _is_beyond(lo: Expr | int, hi: Expr | int, r: Range) -> bool:
    """Tell whether lo:hi surely leaves the range, as only an empty one may."""
    room = (lin([(lo, 1), (r.lo, -1)]), lin([(r.hi, 1), (hi, -1)]))
    return any(isinstance(x, int) and x < 0 for x in room)
