"""Ranges of rows that the data end, where they begin or stop at a point that only the data know.

sum(x[b,max(1,T-2):T])    →   y[b<B,t<T] = merge(x, 0, when=(t >= max(1,T-2), ..));  sum(y[b,0:T])
sum(x[b,T-1-t:T])    →   y[b<B,t<T,t_<T] = merge(x[b,t_], 0, when=(t_ >= ..));  sum(y[b,t,0:T])
sort(x[b,T-1-t:T])   →   y[b<B,t<T] = cut(x[b,0:T], axis=0, start=T-1-t, size=t+1);  sort(y)
"""

from __future__ import annotations

from dataclasses import replace

from recurra.ir.dims import Role
from recurra.ir.expr import Expr, Ext, Sym, both, compare, lin, negate, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import Reduction
from recurra.ir.types import Domain, Range, Type
from recurra.ops.control import Merge
from recurra.ops.movement import Cut
from recurra.ops.reduction import identity
from recurra.ops.source import Const
from recurra.transforms.rewriter.rewriting import Rewriting


def read_whole_rows(graph: Graph, bound: str) -> Graph:
    """Make reductions over such ranges ones over all of a row, of what changes nothing outside.

    Other ops read a part of all of a row.
    """
    g = Rewriting.of(graph, {})
    for n in graph.nodes.values():
        if any(a.slices for a in n.args) and not isinstance(n.op, Merge):
            g.loc = n.loc
            args = n.args
            if isinstance(n.op, Reduction) and n.op.monoid:
                args = tuple(_whole(g, n, n.op, a, bound) for a in args)
            args = tuple(_part_of_row(g, n, a, bound) for a in args)
            if args != n.args:
                g.put(replace(n, args=args))
    return g.graph


def _part_of_row(graph: Rewriting, node: Node, ref: Ref, bound: str) -> Ref:
    """The read of a range that only the data know as a part of all of a row."""
    pairs = list(zip(graph[ref.name].domain, ref.index, strict=True))
    cut = [(r, e) for r, e in pairs if isinstance(e, Slice)]
    whole = [r for r, e in cut if _by_data(r, e, bound)]
    index = (Slice(r.lo, r.hi) if r in whole else e for r, e in pairs)
    part = Ref(ref.name, tuple(index)) if whole else ref
    for axis, (r, e) in enumerate(cut):
        if r in whole:
            op = Cut(axis=axis, start=lin([(e.lo, 1), (r.lo, -1)]), size=e.count)
            part = graph.emit(op, (part,), node.domain, f"{ref.name}_part")
    return part


def end_of_row(expr: Expr | int, bound: str) -> bool:
    """Tell whether an index is T, T-1, .. or the smaller of one of these and a known point."""
    args = expr.args if isinstance(expr, Ext) and expr.op == "min" else (expr,)
    ends = [lin([(Sym(bound), 1), (x, -1)]) for x in args if bound in symbols(x)]
    return all(isinstance(c, int) and c >= 0 for c in ends)


def _whole(graph: Rewriting, node: Node, op: Reduction, ref: Ref, bound: str) -> Ref:
    """The read of all of a row where the op folds a range that only the data know."""
    source = graph[ref.name]
    pairs = list(zip(source.domain, ref.index, strict=True))
    own = {r.dim for r, e in pairs if e == r.sym}
    cut = [k for k, (_, e) in enumerate(pairs) if isinstance(e, Slice)]
    inside: list[Expr] = []
    index: dict[str, Index] = dict(zip(source.domain.dims, ref.index, strict=True))
    moved: dict[str, Range] = {}  # ranges that are cut
    more: set[str] = set()  # dims of the reader that say where
    for axis, k in enumerate(cut):
        r, e = pairs[k]
        if axis not in op.axes or not isinstance(e, Slice) or not _by_data(r, e, bound):
            continue
        by = index_symbols(e) & set(node.domain.dims) - own
        if by & set(source.domain.dims) - {r.dim} or (r.dim in by and len(cut) > 1):
            continue
        here = _second(graph, r) if r.dim in by else r
        moved[r.dim], more = here, more | by
        index[r.dim] = Slice(r.lo, r.hi)
        inside += [compare(">=", here.sym, e.lo), compare("<", here.sym, e.hi)]
    if not inside:
        return ref
    ranges = list(({r.dim: r for r in source.domain} | moved).values())
    named: dict[str, Index] = {r.dim: r.sym for r in node.domain if r.dim in more}
    named |= {r.dim: e for r, e in zip(ranges, index.values(), strict=True)}
    there = Ref(ref.name, tuple(r.sym for r in ranges))
    order = [d.name for d in graph.dims]
    ranges += [node.domain[d] for d in node.domain.dims if d in more]
    domain = Domain(tuple(sorted(ranges, key=lambda r: order.index(r.dim))))
    return Ref(_part(graph, op, there, domain, both(*inside)), tuple(named[r.dim] for r in domain))


def _part(graph: Rewriting, op: Reduction, ref: Ref, domain: Domain, inside: Expr) -> str:
    """An equation over a domain: the read where it is inside, elsewhere what changes no result."""
    type_ = graph[ref.name].type
    assert isinstance(type_, Type)
    assert op.monoid
    none = Const(value=identity(op.monoid, type_.dtype), dtype=type_.dtype, shape=type_.shape)
    other = graph.emit(none, (), domain, "none")
    choice = Merge(when=(inside, negate(inside)))
    made = Node(graph.fresh(f"{ref.name}_part"), choice, (ref, other), domain, type_, graph.loc)
    graph.put(made)
    return made.name


def _second(graph: Rewriting, extent: Range) -> Range:
    """A second dim with the points of one."""
    made = graph.graph.fresh_dim(Role.ADJOINT, extent.dim, extent.hi)
    made = replace(made, range=replace(made.range, lo=extent.lo))
    graph.dims = (*graph.dims, made)
    return made.range


def _by_data(extent: Range, slice_: Slice, bound: str) -> bool:
    """Tell whether a range of a row begins or stops where only the data know."""
    known = bound not in symbols(slice_.lo) and end_of_row(slice_.hi, bound)
    return bound in symbols(extent.hi) and slice_.step == 1 and slice_.pad is None and not known
