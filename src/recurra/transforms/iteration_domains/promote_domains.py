"""Move values that one point of a loop reads into the loop, if that joins it with the next loop.

    a[i] = tanh(x[i,0])                              a[i,t<1] = tanh(x[i,t])
    h[i,t] = merge(a, y, when=(t == 0, t >= 1))  →   h[i,t] = merge(a, y, when=(t == 0, t >= 1))

An equation that lacks a dim gets one in which it runs once, at the point that it reads (Feautrier,
1992, gives every statement a place in the common loops). Between a loop over x and one over h, it
keeps them apart, and every point of x is stored for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recurra.ir.expr import Expr, Sym, fixed_value, lin, symbols
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
    """Equations, `members`, that get one point, `at`, of `dim`; a branch of `reader` reads them.

    `sources` have the dim, and are read at the point.
    """

    dim: str
    at: Point
    members: frozenset[str]
    sources: frozenset[str]
    reader: str

    def __str__(self) -> str:
        return f"{', '.join(sorted(self.members))}: in the loop over {self.dim}, at {self.at}"

    def ref(self, ref: Ref, graph: Graph, inside: bool) -> Ref:
        """The new form of a read; `inside` if its reader runs at the point."""
        at: Point = Sym(self.dim) if inside else self.at
        domain = graph[ref.name].domain
        if ref.name in self.members:
            k = [d for d in graph.declared if d == self.dim or d in domain].index(self.dim)
            return Ref(ref.name, (*ref.index[:k], at, *ref.index[k:]))
        if inside and ref.name in self.sources:
            return ref.with_index(domain.dims.index(self.dim), at)
        return ref

    def applied(self, graph: Graph) -> Graph:
        """The graph with the members in the loop."""
        nodes: dict[str, Node] = {}
        for n in graph.nodes.values():
            member = n.name in self.members
            args = tuple(
                self.ref(
                    a, graph, member or fixed_value(merge_condition(n, k), self.dim) == self.at
                )
                if member or a.name in self.members
                else a
                for k, a in enumerate(n.args)
            )
            nodes[n.name] = replace(n, args=args, domain=self.domain(n, graph))
        return replace(graph, nodes=nodes)

    def domain(self, node: Node, graph: Graph) -> Domain:
        """The new domain of an equation; dims are in the order of declaration."""
        if node.name not in self.members:
            return node.domain
        ranges = {r.dim: r for r in node.domain}
        ranges[self.dim] = Range(self.dim, lin([(self.at, 1), (1, 1)]), self.at)
        return Domain(tuple(ranges[d] for d in graph.declared if d in ranges))


def promotions(graph: Graph, free: frozenset[str]) -> Iterator[Promotion]:
    """Find what branches read at one point of a dim that does not become an axis."""
    seen: set[str] = set()
    for n in graph.nodes.values():
        for k, a in enumerate(n.args if isinstance(n.op, Merge) else ()):
            for r in n.domain:
                at = fixed_value(merge_condition(n, k), r.dim)
                if r.dim in free or at is None or symbols(at) & graph.declared.keys():
                    continue
                found = _promotion(graph, n.name, r.dim, at, a.name)
                if found is not None and not found.members & seen:
                    seen |= found.members
                    yield found


def _promotion(graph: Graph, reader: str, dim: str, at: Point, first: str) -> Promotion | None:
    """Find the operands of `first` that lack a dim and depend on the point `at` of it."""
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
    found = Promotion(dim, at, frozenset(members), frozenset(sources), reader)
    legal = first in members and all(_is_legal(graph, found, name) for name in members)
    return found if legal else None


def _is_legal(graph: Graph, promotion: Promotion, name: str) -> bool:
    """Tell whether an equation may run in the loop, and its readers find it there."""
    n, dim = graph[name], promotion.dim
    if not n.op.pure or isinstance(n.op, (Call, Item, Input)) or name in graph.outputs:
        return False
    if list(n.domain.dims) != [d for d in graph.declared if d in n.domain]:
        return False
    for a in n.args:
        r = graph[a.name].domain
        e = a.index[r.dims.index(dim)] if dim in r else promotion.at
        if isinstance(e, Slice) or e != promotion.at:
            return False
    return all(
        dim not in r.domain or fixed_value(merge_condition(r, k), dim) == promotion.at
        for r, k in graph.readers[name]
    )


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a branch reads, at one point of a dim, an equation that lacks the dim."""
    return any(True for _ in promotions(graph, frozenset(free_dims(graph, cx).all)))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Move equations that one point reads into the loop, if two loops become one then."""
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
