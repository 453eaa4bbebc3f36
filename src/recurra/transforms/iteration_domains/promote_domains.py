"""Values that one point of a loop asks for before the next loop are computed in the loop.

    a[i] = tanh(x[i,0])                              a[i,t<1] = tanh(x[i,t])
    h[i,t] = merge(a, y, when=(t == 0, t >= 1))  →   h[i,t] = merge(a, y, when=(t == 0, t >= 1))

An equation that lacks a dim has one in which it runs once, at the point that it reads (Feautrier,
1992, gives every statement a place in the common loops). One that stands between a loop over x and
one over h keeps them apart, and x at every point is stored for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recurra.ir.expr import Expr, Sym, lin, pinned, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.types import Domain, Range
from recurra.ops.control import Call, Item, Merge
from recurra.ops.source import Input
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.vectorize.plan import free_dims

Point = Expr | int


@dataclass(frozen=True)
class Promotion:
    """Equations that get a dim, with one point of it; a branch of `reader` takes what they make."""

    dim: str
    at: Point
    members: frozenset[str]
    sources: frozenset[str]  # that have the dim, and are read at the point
    reader: str

    def __str__(self) -> str:
        return f"{', '.join(sorted(self.members))}: in the loop over {self.dim}, at {self.at}"

    def ref(self, ref: Ref, graph: Graph, inside: bool) -> Ref:
        """A read as it is then; `inside`, of a reader that is at the point."""
        place: Point = Sym(self.dim) if inside else self.at
        if ref.name in self.members:
            dims = [d for d in graph.declared if d == self.dim or d in graph[ref.name].domain]
            k = dims.index(self.dim)
            return Ref(ref.name, (*ref.index[:k], place, *ref.index[k:]))
        if inside and ref.name in self.sources:
            k = graph[ref.name].domain.dims.index(self.dim)
            return ref.with_index(k, place)
        return ref

    def applied(self, graph: Graph) -> Graph:
        """The graph with the members in the loop."""
        nodes: dict[str, Node] = {}
        for n in graph.nodes.values():
            member = n.name in self.members
            args = tuple(
                self.ref(a, graph, member or pinned(merge_condition(n, k), self.dim) == self.at)
                if member or a.name in self.members
                else a
                for k, a in enumerate(n.args)
            )
            n = replace(n, args=args)
            nodes[n.name] = replace(n, domain=self.domain(n, graph)) if member else n
        return replace(graph, nodes=nodes)

    def domain(self, node: Node, graph: Graph) -> Domain:
        """The domain of a member with the dim, in the order of declaration."""
        ranges = {r.dim: r for r in node.domain}
        ranges[self.dim] = Range(self.dim, lin([(self.at, 1), (1, 1)]), self.at)
        return Domain(tuple(ranges[d] for d in graph.declared if d in ranges))


def promotions(graph: Graph, free: frozenset[str]) -> Iterator[Promotion]:
    """Find what branches take at one point of a dim that is none of the axes."""
    seen: set[str] = set()
    for n in graph.nodes.values():
        for k, a in enumerate(n.args if isinstance(n.op, Merge) else ()):
            for r in n.domain:
                at = pinned(merge_condition(n, k), r.dim)
                if r.dim in free or at is None or symbols(at) & graph.declared.keys():
                    continue
                found = _promotion(graph, n.name, r.dim, at, a.name)
                if found is not None and not found.members & seen:
                    seen |= found.members
                    yield found


def _promotion(graph: Graph, reader: str, dim: str, at: Point, first: str) -> Promotion | None:
    """Find what an operand needs of one point of a dim that it lacks, if it is read there alone."""
    lacking, sources, todo = {first}, set[str](), [first] if dim not in graph[first].domain else []
    depend: list[str] = []  # on the point
    while todo:
        n = graph[todo.pop()]
        for a in n.args:
            dims = graph[a.name].domain.dims
            if dim not in dims:
                if a.name not in lacking and graph.is_identity(a):
                    lacking.add(a.name)
                    todo.append(a.name)
            elif a.index[dims.index(dim)] == at:
                sources.add(a.name)
                depend.append(n.name)
    members = set(depend)
    while depend:
        for r, k in graph.readers[depend.pop()]:
            if r.name in lacking - members and graph.is_identity(r.args[k]):
                members.add(r.name)
                depend.append(r.name)
    made = Promotion(dim, at, frozenset(members), frozenset(sources), reader)
    return made if first in members and all(_may(graph, made, name) for name in members) else None


def _may(graph: Graph, made: Promotion, name: str) -> bool:
    """May an equation run in the loop, and its readers find it there?"""
    n = graph[name]
    if not n.op.pure or isinstance(n.op, (Call, Item, Input)) or name in graph.outputs:
        return False
    if list(n.domain.dims) != [d for d in graph.declared if d in n.domain]:
        return False
    for a in n.args:
        r = graph[a.name].domain
        e = a.index[r.dims.index(made.dim)] if made.dim in r else made.at
        if isinstance(e, Slice) or e != made.at:
            return False
    return all(
        made.dim not in r.domain or pinned(merge_condition(r, k), made.dim) == made.at
        for r, k in graph.readers[name]
    )


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a branch takes at one point what has no such dim."""
    return any(True for _ in promotions(graph, frozenset(free_dims(graph, cx).all)))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Move equations that are needed at one point into the loop, if two loops become one then."""
    free = frozenset(free_dims(graph, cx).all)
    for found in promotions(graph, free):
        new = found.applied(graph)
        joins = not _is_one_loop(graph, found, cx, free) and _is_one_loop(new, found, cx, free)
        if joins and fuel().burn("between two loops → in one", found.reader):
            graph = new
            cx.remark(found)
    return graph


def _is_one_loop(graph: Graph, found: Promotion, cx: CompileContext, free: frozenset[str]) -> bool:
    """Tell whether the reader and a source would run in the same loops."""
    around = {name: phase[:-1] for name, phase in cx.phases(graph, free).items()}
    return any(around.get(s) == around.get(found.reader) for s in found.sources)


PROMOTE_DOMAINS = Pass("promote_domains", run, applies)
