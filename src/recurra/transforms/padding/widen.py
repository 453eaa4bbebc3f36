"""Extend sums over the rest of a dim, t:T, to all of it, if the terms before are zero.

   g[t<T] = einsum(w[t,t:T], q[t:T], labels='n,nd->d');  w[t<T,u<T] = pick(p[u], at_=t, zero=True)
→  g[t<T] = einsum(w[t,0:T], q[0:T], labels='n,nd->d')       p[u]: f32[u+1] has no element t > u

Gradients of reads of 0:t+1 then read the same range at all points, as one array, if t imposes no
order. A range t:T would have T elements as well, once it is padded.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.ir.expr import Expr, compare, substitute
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.types import Domain, Range, Type
from recurra.ops.contraction import Einsum
from recurra.ops.indexing import Pick
from recurra.polyhedral import isl
from recurra.transforms.vectorize.plan import ordered_dims


def sum_over_all(graph: Graph) -> Graph:
    """Return the graph in which such sums along unordered dims are over all points."""
    found = [new for n in graph.nodes.values() if (new := _over_all(graph, n)) is not None]
    if not found:
        return graph
    ordered = ordered_dims(graph)

    def is_free(name: str) -> bool:
        slices = (s for a in graph[name].args for s in a.slices)
        moving = {d for s in slices for d in index_symbols(s)} & graph.declared.keys()
        return not any(name in ordered[d] for d in moving)

    free = {n.name: n for n in found if is_free(n.name)}
    return replace(graph, nodes={**graph.nodes, **free})


def _over_all(graph: Graph, node: Node) -> Node | None:
    """A product whose summed range begins at a moving point, as one over all points."""
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
    """The range of the source that a slice is a part of."""
    at = next(k for k, e in enumerate(ref.index) if isinstance(e, Slice))
    return graph[ref.name].domain.ranges[at]


def _is_zero_before(graph: Graph, node: Node, ref: Ref, begin: Expr | int) -> bool:
    """Tell whether a read picks elements past the end of an axis, at all points before a range."""
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
