"""place: an equation that lacks the dim along which its cycle runs gets one point of it.

    y = tanh(x[0])                                    y_at[0<=t<1] = tanh(x[0])
    x[t<T] = merge(c, z[t-1], when=(t == 0, t > 0))   →   z[t<T] = add(x, y_at[0])
    z[t<T] = add(x, y)

The point is where the last of its operands is made; what reads it there is ordered by the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from recurra.ir.expr import TRUE, Expr, maximum, minimum, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.order import components
from recurra.ir.types import Domain, Range
from recurra.ops.control import Merge
from recurra.rewrite.compile_context import CompileContext, Pass
from recurra.rewrite.granularity import Edge, carried, cycles
from recurra.sets.dependence import happens


def place(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with every cycle's equations over the dims that the cycle runs along."""
    while True:
        edges = [
            (n.name, k)
            for n in graph.nodes.values()
            for k in range(len(n.args))
            if happens(n.domain, merge_condition(n, k))
        ]
        better = _first(graph, list(graph.nodes), edges, list(graph.declared))
        if better is None:
            return graph
        graph = better


def _first(
    graph: Graph, nodes: Sequence[str], edges: Sequence[Edge], dims: Sequence[str]
) -> Graph | None:
    """The graph after the first placement, going inwards loop by loop; None if there is none."""
    for part, within in cycles(graph, nodes, edges):
        better = _inside(graph, part, within, dims)
        if better is not None:
            return better
    return None


def _inside(graph: Graph, part: list[str], within: list[Edge], dims: Sequence[str]) -> Graph | None:
    for d in dims:
        left = carried(graph, part, within, d)
        if left is not None and len(left) < len(within):
            return _first(graph, part, left, [x for x in dims if x != d])
    for d in dims:
        for sign in (1, -1):
            better = _placed(graph, part, within, d, sign)
            if better is not None:
                return better
    return None


def _placed(graph: Graph, part: list[str], within: list[Edge], dim: str, sign: int) -> Graph | None:
    """The graph with what lacks `dim` at its point of the cycle; None if that orders nothing."""
    lack = [n for n in part if dim not in graph[n].domain]
    at = _points(graph, lack, part, within, dim, sign)
    if not lack or len(lack) == len(part) or at is None:
        return None
    names = {n: graph.fresh(f"{n}_at") for n in lack}
    order = list(graph.declared)

    def redirect(n: Node) -> Node:
        args = [_at(a, graph[a.name], names, dim, at, order) for a in n.args]
        return replace(n, args=tuple(args)) if tuple(args) != n.args else n

    new = {n.name: redirect(n) for n in graph.nodes.values()}
    for old, name in names.items():
        n = new.pop(old)
        ranges = [*n.domain, Range(dim, at[old] + 1, at[old])]
        domain = Domain(tuple(sorted(ranges, key=lambda r: order.index(r.dim))))
        new[name] = replace(n, name=name, domain=domain)
        if old in graph.outputs:
            copy = _at(graph.read(old), n, names, dim, at, order)
            new[old] = Node(old, Merge(when=(TRUE,)), (copy,), n.domain, n.type, n.loc)
    better = Graph(new, graph.outputs, graph.dims)
    moved = [(names.get(n, n), k) for n, k in within]
    left = carried(better, [names.get(n, n) for n in part], moved, dim)
    return better if left is not None and len(left) < len(within) else None


def _points(
    graph: Graph, lack: list[str], part: list[str], within: list[Edge], dim: str, sign: int
) -> dict[str, Any] | None:
    """For each equation that lacks the dim, the point at which its last operand is there."""
    at: dict[str, Any] = {}
    dims = set(graph.declared)
    feeds = {n: [graph[n].args[k].name for m, k in within if m == n] for n in lack}
    for name, *more in components(lack, lambda n: [x for x in feeds[n] if x in feeds]):
        if more or name in feeds[name]:
            return None
        ends: list[Any] = []
        for a in (graph[name].args[k] for m, k in within if m == name):
            if a.name in at:
                ends.append(at[a.name])
            else:
                ends += _end(a, graph[a.name], dim, sign)
        if any(isinstance(e, Expr) and symbols(e) & dims for e in ends):
            return None
        at[name] = (maximum if sign > 0 else minimum)(*ends)
    return at


def _end(a: Ref, source: Node, dim: str, sign: int) -> list[Any]:
    """The last point that a read asks for, along a dim of its source."""
    e: Any = a.index[source.domain.dims.index(dim)]
    if isinstance(e, Slice):
        hi: Any = e.hi
        return [hi - 1 if sign > 0 else e.lo]
    return [e]


def _at(
    a: Ref,
    source: Node,
    names: Mapping[str, str],
    dim: str,
    at: Mapping[str, Any],
    order: list[str],
) -> Ref:
    """The read, of the placed equation if its source is one."""
    if a.name not in names:
        return a
    index = [*zip(source.domain.dims, a.index, strict=True), (dim, at[a.name])]
    index.sort(key=lambda p: order.index(p[0]))
    return Ref(names[a.name], tuple(e for _, e in index))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Give an equation that lacks the dim of its cycle one point of it."""
    return place(graph, cx.sizes)


PLACE = Pass("place", run)
