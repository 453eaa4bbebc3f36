"""Ranges of rows that begin or stop at a point that depends on data: read whole rows instead.

sum(x[b,max(1,T-2):T])    →   y[b<B,t<T] = merge(x, 0, when=(t >= max(1,T-2), ..));  sum(y[b,0:T])
sum(x[b,T-1-t:T])    →   y[b<B,t<T,t_<T] = merge(x[b,t_], 0, when=(t_ >= ..));  sum(y[b,t,0:T])
sort(x[b,T-1-t:T])   →   y[b<B,t<T] = cut(x[b,0:T], axis=0, start=T-1-t, size=t+1);  sort(y)
"""

from __future__ import annotations

from dataclasses import replace

from recurra.ir.dims import Role
from recurra.ir.expr import Expr, Ext, Sym, all_of, compare, lin, negate, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import Reduction
from recurra.ir.types import Domain, Range
from recurra.ops.control import Merge
from recurra.ops.movement import Cut
from recurra.ops.reduction import identity
from recurra.ops.source import Const
from recurra.transforms.rewriter.rewriting import Rewriting


def read_whole_rows(graph: Graph, bound: str) -> Graph:
    """Return the graph in which such ranges are parts of whole rows.

    Reductions are over whole rows, with neutral elements outside of the range; other ops read a
    part that is cut from a whole row.
    """
    g = Rewriting.of(graph, {})
    for n in graph.nodes.values():
        if any(a.slices for a in n.args) and not isinstance(n.op, Merge):
            g.loc = n.loc
            args = n.args
            if isinstance(n.op, Reduction) and n.op.monoid:
                args = tuple(_whole_rows(g, n, n.op, a, bound) for a in args)
            args = tuple(_part_of_row(g, n, a, bound) for a in args)
            if args != n.args:
                g.put(replace(n, args=args))
    return g.graph


def _part_of_row(graph: Rewriting, node: Node, ref: Ref, bound: str) -> Ref:
    """A read of ranges that depend on data, as parts of whole rows."""
    pairs = list(zip(graph[ref.name].domain, ref.index, strict=True))
    sliced = [(r, e) for r, e in pairs if isinstance(e, Slice)]
    whole = [r for r, e in sliced if _depends_on_data(r, e, bound)]
    index = (Slice(r.lo, r.hi) if r in whole else e for r, e in pairs)
    part = Ref(ref.name, tuple(index)) if whole else ref
    for axis, (r, e) in enumerate(sliced):
        if r in whole:
            op = Cut(axis=axis, start=lin([(e.lo, 1), (r.lo, -1)]), size=e.count)
            part = graph.emit(op, (part,), node.domain, f"{ref.name}_part")
    return part


def _whole_rows(graph: Rewriting, node: Node, op: Reduction, ref: Ref, bound: str) -> Ref:
    """A read of whole rows in place of ranges that depend on data, which a reduction reads."""
    source = graph[ref.name]
    pairs = list(zip(source.domain, ref.index, strict=True))
    own = {r.dim for r, e in pairs if e == r.sym}
    sliced = [(r, e) for r, e in pairs if isinstance(e, Slice)]
    inside: list[Expr] = []
    index: dict[str, Index] = dict(zip(source.domain.dims, ref.index, strict=True))
    moved: dict[str, Range] = {}  # the ranges of sliced dims
    more: set[str] = set()  # dims of the reader on which the ranges depend
    for axis, (r, e) in enumerate(sliced):
        if axis not in op.axes or not _depends_on_data(r, e, bound):
            continue
        by = index_symbols(e) & set(node.domain.dims) - own
        if by & set(source.domain.dims) - {r.dim} or (r.dim in by and len(sliced) > 1):
            continue
        here = r
        if r.dim in by:  # a second dim with the same points
            copy = graph.graph.fresh_dim(Role.ADJOINT, r.dim, r.hi)
            here = replace(copy.range, lo=r.lo)
            graph.dims = (*graph.dims, replace(copy, range=here))
        moved[r.dim], more = here, more | by
        index[r.dim] = Slice(r.lo, r.hi)
        inside += [compare(">=", here.sym, e.lo), compare("<", here.sym, e.hi)]
    if not inside:
        return ref
    ranges = list(({r.dim: r for r in source.domain} | moved).values())
    index_of: dict[str, Index] = {r.dim: r.sym for r in node.domain if r.dim in more}
    index_of |= {r.dim: e for r, e in zip(ranges, index.values(), strict=True)}
    point = Ref(ref.name, tuple(r.sym for r in ranges))
    order = [d.name for d in graph.dims]
    ranges += [node.domain[d] for d in node.domain.dims if d in more]
    domain = Domain(tuple(sorted(ranges, key=lambda r: order.index(r.dim))))
    part = _masked(graph, op, point, domain, all_of(*inside))
    return Ref(part, tuple(index_of[r.dim] for r in domain))


def _masked(graph: Rewriting, op: Reduction, ref: Ref, domain: Domain, inside: Expr) -> str:
    """Add an equation that is the read inside, and neutral elsewhere; return its name."""
    type_ = graph[ref.name].tensor
    assert op.monoid
    none = Const(value=identity(op.monoid, type_.dtype), dtype=type_.dtype, shape=type_.shape)
    other = graph.emit(none, (), domain, "none")
    name, merge = graph.fresh(f"{ref.name}_part"), Merge(when=(inside, negate(inside)))
    graph.put(Node(name, merge, (ref, other), domain, type_, graph.loc))
    return name


def _depends_on_data(extent: Range, slice_: Slice, bound: str) -> bool:
    """Tell whether a range of a row begins, or stops before its end, at a point set by data."""
    hi = slice_.hi
    args = hi.args if isinstance(hi, Ext) and hi.op == "min" else (hi,)
    ends = [lin([(Sym(bound), 1), (x, -1)]) for x in args if bound in symbols(x)]
    at_end = all(isinstance(c, int) and c >= 0 for c in ends)  # T, T-1, .. or min(t, T)
    known = bound not in symbols(slice_.lo) and at_end
    return bound in symbols(extent.hi) and slice_.step == 1 and slice_.pad is None and not known
