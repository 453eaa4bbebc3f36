"""Sums over the rest of a dim, of what is zero before it, are sums over all of the dim.

   g[t<T] = einsum(w[t,t:T], q[t:T], labels='n,nd->d');  w[t<T,u<T] = pick(p[u], at_=t, zero=True)
→  g[t<T] = einsum(w[t,0:T], q[0:T], labels='n,nd->d')       p[u]: f32[u+1] has no element t > u

So gradients of what reads 0:t+1 read the same of all points, as one array, where t orders nothing.
A range t:T would have T elements as well, once it is padded.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.ir.expr import Expr, compare, substitute
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.types import Domain, Range, Type
from recurra.ops.contraction import Einsum
from recurra.ops.indexing import Pick
from recurra.polyhedral import isl
from recurra.transforms.vectorize.plan import loops


def widened(graph: Graph) -> Graph:
    """The graph where such sums along dims that order nothing are over all points."""
    found = {
        n.name: made for n in graph.nodes.values() if (made := _over_all(graph, n)) is not None
    }
    if not found:
        return graph
    ordered = loops(graph)
    free = {
        name: made
        for name, made in found.items()
        if not any(name in ordered[d] for d in _moving(graph, graph[name]))
    }
    return Graph({**graph.nodes, **free}, graph.outputs, graph.dims)


def _moving(graph: Graph, node: Node) -> set[str]:
    return {d for a in node.args for s in a.slices for d in index_symbols(s)} & set(graph.declared)


def _over_all(graph: Graph, node: Node) -> Node | None:
    """Return a product whose summed range begins at a moving point as one over all points."""
    if not isinstance(node.op, Einsum):
        return None
    ins, out = node.op.parts()
    ranged = [(labels[:1], a) for labels, a in zip(ins, node.args, strict=True) if a.slices]
    labels, slices = {x for x, _ in ranged}, {s for _, a in ranged for s in a.slices}
    if len(labels) != 1 or len(slices) != 1 or labels <= set(out):
        return None
    (summed,) = labels
    if any(x.count(summed) != len(a.slices) for x, a in zip(ins, node.args, strict=True)):
        return None  # an operand has an axis of that length, which begins where the range does
    (s,) = slices
    extents = [_extent(graph, a) for _, a in ranged]
    lo, hi = extents[0].lo, extents[0].hi
    moves = isinstance(s.lo, Expr) and bool(index_symbols(s) & set(node.domain.dims))
    if not moves or s.step != 1 or s.pad is not None or s.hi != hi:
        return None
    if any((r.lo, r.hi) != (lo, hi) for r in extents):
        return None
    if not any(_is_zero_before(graph, node, a, s.lo) for _, a in ranged):
        return None
    whole = Slice(lo, hi)
    args = (Ref(a.name, tuple(whole if e == s else e for e in a.index)) for a in node.args)
    return replace(node, args=tuple(args))


def _extent(graph: Graph, ref: Ref) -> Range:
    """Return all of what a range that is read is a part of."""
    at = next(k for k, e in enumerate(ref.index) if isinstance(e, Slice))
    return graph[ref.name].domain.ranges[at]


def _is_zero_before(graph: Graph, node: Node, ref: Ref, begin: Expr | int) -> bool:
    """Tell whether what is read is an element that there is not, at all points before a range."""
    source, extent = graph[ref.name], _extent(graph, ref)
    if not isinstance(source.op, Pick) or not source.op.zero or extent.dim in node.domain:
        return False
    pairs = zip(source.domain.dims, ref.index, strict=True)
    by = {d: e for d, e in pairs if not isinstance(e, Slice)}
    picked = graph.read_type(source.args[0])
    assert isinstance(picked, Type)
    at, size = (substitute(x, by) for x in (source.op.at_, picked.shape[source.op.axis]))
    beyond, before = compare(">=", at, size), compare("<", extent.sym, begin)
    return isl.always(beyond, Domain((*node.domain.ranges, extent)), (before,))
