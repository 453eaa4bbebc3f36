"""Adjoints of growing ranges: sum what later steps read of a point, without all pairs.

   e[u<T] = einsum(d, v[0:u+1], q, labels='e,ne,d->nd')      what step u sends to every point n <= u
   g[t<T] = sum(pick(e[u], axis=n, at_=t) for u in t:T)
→  g = einsum(d[t:T], q[t:T], v, labels='Ze,Zd,e->d')

Such sums are the gradients of reads of all the past; `lift_contraction` makes them a state of
constant size that runs backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from recurra.ir.expr import Sym, substitute
from recurra.ir.graph import Node, Slice, index_at, index_symbols
from recurra.ir.op import fresh_label
from recurra.ir.types import Type, is_float
from recurra.ops.contraction import Einsum
from recurra.ops.indexing import Pick
from recurra.ops.reduction import Sum
from recurra.transforms.recurrences.incrementalize_contraction import Factor, products, total
from recurra.transforms.recurrences.scans import ScanDirection, grows
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting


@rule(Sum)
def lift_adjoint(node: Node, graph: Rewriting) -> Node | None:
    """Σ over u = t:T of (a[u]·b[0:u+1])[t] → a[t:T] · b[t]"""
    found = _sent(node, graph)
    if found is None:
        return None
    e, dim, ahead, axis = found
    assert isinstance(e.op, Einsum)
    ins, out = e.op.parts()
    c = out[axis]
    every = products(list(zip(ins, e.args, strict=True)), c, graph)
    new = fresh_label("".join(s for p in every for s, _ in p) + out)
    terms = [_term(e, p, dim, ahead, c, new, graph) for p in every]
    found = [t for t in terms if t is not None and any(new in s for s, _ in t)]
    return total(node, found, out.replace(c, ""), graph) if len(found) == len(terms) else None


def _term(
    node: Node,
    factors: Sequence[Factor],
    dim: str,
    ahead: Slice,
    label: str,
    new: str,
    graph: Rewriting,
) -> list[Factor] | None:
    """The factors that later steps send, along the label `new`, to the point that receives them."""
    out: list[Factor] = []
    for labels, a in factors:
        mine = [k for k, x in enumerate(a.index) if dim in index_symbols(x)]
        if label in labels:
            one = grows(node, a, graph, 0) if labels[0] == label and len(a.slices) == 1 else None
            if (
                one is None
                or one[0] != ScanDirection(node.domain[dim], 1)
                or node.domain[dim].lo != 0
            ):
                return None
            out.append((labels[1:], one[1].at({dim: ahead.lo})))
        elif not mine:
            out.append((labels, a))
        elif len(mine) > 1 or a.slices or a.index[mine[0]] != Sym(dim):
            return None
        else:
            out.append((new + labels, a.with_index(mine[0], ahead)))
    return out


def _sent(node: Node, graph: Rewriting) -> tuple[Node, str, Slice, int] | None:
    """The contraction that is summed: (it, its dim, the steps summed over, its axis of points)."""
    (a,) = node.args
    if node.op != Sum(axes=(0,)) or len(a.slices) != 1 or not isinstance(node.type, Type):
        return None
    p = graph[a.name]
    if not isinstance(p.op, Pick) or not is_float(node.type.dtype):
        return None
    (read,) = p.args
    e = graph[read.name]
    (k,) = [k for k, x in enumerate(a.index) if isinstance(x, Slice)]
    ahead, u = a.index[k], p.domain.ranges[k]
    dims = e.domain.dims
    at = [j for j, x in enumerate(read.index) if x == u.sym]
    if not isinstance(e.op, Einsum) or not isinstance(ahead, Slice) or len(at) != 1:
        return None
    # all but the dim of the steps are read at the sum's own point
    points, _ = a.parts(p.domain)
    rest = [(d, index_at(x, points)) for d, x in zip(dims, read.index, strict=True)]
    if any(x != Sym(d) for j, (d, x) in enumerate(rest) if j != at[0]):
        return None
    receiver = substitute(p.op.at_, points)
    whole = ahead.step == 1 and ahead.pad is None and ahead.hi == u.hi == e.domain.ranges[at[0]].hi
    if not whole or receiver != ahead.lo or dims[at[0]] not in node.domain:
        return None
    return e, dims[at[0]], ahead, p.op.axis
