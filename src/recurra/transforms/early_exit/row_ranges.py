"""Ranges of rows that the data end, where they begin or stop at a point that only the data know.

sum(x[b,max(1,T-2):T])    →   y[b<B,t<T] = merge(x, 0, when=(t >= max(1,T-2), ..));  sum(y[b,0:T])
"""

from __future__ import annotations

from dataclasses import replace

from recurra.ir.expr import Expr, Ext, Sym, both, compare, lin, negate, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.op import Reduction
from recurra.ir.types import Range, Type
from recurra.ops.control import Merge
from recurra.ops.reduction import identity
from recurra.ops.source import Const
from recurra.transforms.rewriter.pattern_rewriter import Rewriting


def read_whole_rows(graph: Graph, bound: str) -> Graph:
    """Make reductions over such ranges ones over all of a row, of what changes nothing outside."""
    g = Rewriting.of(graph, {})
    for n in graph.nodes.values():
        if isinstance(n.op, Reduction) and n.op.monoid:
            g.loc = n.loc
            args = tuple(_whole(g, n.op, a, bound) for a in n.args)
            if args != n.args:
                g.put(replace(n, args=args))
    return g.graph


def end_of_row(expr: Expr | int, bound: str) -> bool:
    """Tell whether an index is T, T-1, .. or the smaller of one of these and a known point."""
    args = expr.args if isinstance(expr, Ext) and expr.op == "min" else (expr,)
    ends = [lin([(Sym(bound), 1), (x, -1)]) for x in args if bound in symbols(x)]
    return all(isinstance(c, int) and c >= 0 for c in ends)


def _whole(rewriting: Rewriting, op: Reduction, ref: Ref, bound: str) -> Ref:
    """The read of all of a row where the op folds a range that only the data know."""
    source = rewriting[ref.name]
    pairs = list(zip(source.domain, ref.index, strict=True))
    own = {r.dim for r, e in pairs if e == r.sym}
    cut = [k for k, (_, e) in enumerate(pairs) if isinstance(e, Slice)]
    index, inside = list(ref.index), list[Expr]()
    for axis, k in enumerate(cut):
        r, e = pairs[k]
        if axis not in op.axes or not isinstance(e, Slice) or not _by_data(r, e, bound):
            continue
        if index_symbols(e) & rewriting.graph.declared.keys() <= own:
            index[k] = Slice(r.lo, r.hi)
            inside += [compare(">=", r.sym, e.lo), compare("<", r.sym, e.hi)]
    if not inside:
        return ref
    assert isinstance(source.type, Type)
    assert op.monoid
    here, dtype = both(*inside), source.type.dtype
    none = Const(value=identity(op.monoid, dtype), dtype=dtype, shape=source.type.shape)
    other = rewriting.emit(none, (), source.domain, "none")
    choice = Merge(when=(here, negate(here)))
    args = rewriting.read(ref.name), other
    made = Node(
        rewriting.fresh(f"{ref.name}_part"), choice, args, source.domain, source.type, rewriting.loc
    )
    rewriting.put(made)
    return Ref(made.name, tuple(index))


def _by_data(extent: Range, slice_: Slice, bound: str) -> bool:
    """Tell whether a range of a row begins or stops where only the data know."""
    known = bound not in symbols(slice_.lo) and end_of_row(slice_.hi, bound)
    return bound in symbols(extent.hi) and slice_.step == 1 and slice_.pad is None and not known
