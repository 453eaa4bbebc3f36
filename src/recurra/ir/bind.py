"""Substitute numbers for bounds that belong to no dim, such as the n of an n-step return.

g[t<T] = sum(r[t:min(t+N,T)])   N=5   →   g[t<T] = sum(r[t:min(t+5,T)])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph, Ref, Slice
from recurra.ir.types import Domain, Range


def bind_bounds(graph: Graph, values: Mapping[str, int]) -> Graph:
    """Return the graph with numbers in place of bounds."""
    nodes = {
        n.name: replace(
            n,
            op=n.op.at(values),
            args=tuple(a.at(values) for a in n.args),
            domain=n.domain.at(values),
            type=n.type.at(values),
        )
        for n in graph.nodes.values()
    }
    return Graph(nodes, graph.outputs, tuple(d.at(values) for d in graph.dims))


def without_negative(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Make ranges that would end before they begin empty, for bounds of the given sizes.

    Reads of such a whole range become empty as well.
    """

    def empty(extent: Range) -> bool:
        known = extent.mentions() <= sizes.keys()
        return known and evaluate(extent.hi, sizes) < evaluate(extent.lo, sizes)

    def read(ref: Ref) -> Ref:
        ranges = zip(ref.index, graph[ref.name].domain, strict=True)
        return Ref(
            ref.name,
            tuple(
                replace(e, hi=e.lo)
                if isinstance(e, Slice) and (e.lo, e.hi) == (r.lo, r.hi) and empty(r)
                else e
                for e, r in ranges
            ),
        )

    empty_nodes = {n.name for n in graph.nodes.values() if any(map(empty, n.domain))}
    return graph.update(
        replace(
            n,
            domain=Domain(tuple(replace(r, hi=r.lo) if empty(r) else r for r in n.domain)),
            args=tuple(read(a) if a.name in empty_nodes else a for a in n.args),
        )
        for n in graph.nodes.values()
        if n.name in empty_nodes or any(a.name in empty_nodes for a in n.args)
    )
