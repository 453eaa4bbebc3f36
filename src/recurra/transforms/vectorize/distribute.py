"""distribute: products that wait for nothing of their loop are made ahead of it, at all points.

    y[t<T] = einsum(x[t], w)                            y: [T] = einsum(x[0:T], w)
    h[t<T] = merge(0, f(h[t-1], y), when=..)       →    h[t<T] = merge(0, f(h[t-1], y[t]), when=..)

A loop is distributed over what it orders and what it does not (Allen and Kennedy, 1987): of a few
rows at a time a product takes as long as of many. What is made ahead is held for all points, so the
cheapest border is a minimum cut between the products and what the loop orders. A loop that orders
nothing is left to `tile`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import cast

from recurra.analysis.data_conditions import worth_asking
from recurra.analysis.guards import guards
from recurra.cost.model import compute_ns, keep_ns
from recurra.cost.prices import Prices
from recurra.cost.thresholds import (
    MAX_PEELED_BYTES,
    MEMORY_PRICE,
    MIN_DECIDED_NS,
    MIN_VECTOR_ROWS,
)
from recurra.ir.cut import ONE, OTHER, Network
from recurra.ir.graph import Graph, Node, Ref, index_symbols
from recurra.ir.types import Type
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.elementwise import Going
from recurra.ops.source import Input
from recurra.transforms.compile_context import CompileContext, Pass, Phase
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.vectorize.plan import free_dims, loops
from recurra.transforms.vectorize.vectorize import candidates, vectorize


@dataclass(frozen=True)
class _OrderedLoop:
    """The equations of one loop over `dim`; those of `batch` dims are axes in it."""

    graph: Graph
    sizes: Mapping[str, int]
    dim: str
    members: frozenset[str]
    waiting: frozenset[str]
    batch: frozenset[str]
    held: float
    prices: Prices

    def rows(self, node: Node) -> int:
        """The points of an equation at a step of the loop."""
        return node.domain.points(self.sizes, self.batch)

    def steps(self, node: Node) -> int:
        return node.domain[self.dim].size(self.sizes)

    @cached_property
    def free(self) -> set[str]:
        """The equations that can be said for all points at once, and wait for none of the loop."""
        but = {n for n in self.graph.nodes if not self.may_go(n)}
        return candidates(self.graph, self.dim, self.sizes, but)

    def may_go(self, name: str) -> bool:
        """Is it a pure equation that waits for nothing, at as many points wherever the loop is?

        What is drawn is made where it is used: it takes much more memory than the result.
        """
        n = self.graph[name]
        if name not in self.members or name in self.waiting or isinstance(n.op, Merge):
            return False
        if n.op.drawn or name in self.graph.outputs or not is_static(n, self.sizes):
            return False
        assert isinstance(n.type, Type)
        points = self.rows(n) * self.steps(n)
        return points * n.type.nbytes(self.sizes) <= MAX_PEELED_BYTES

    def saved(self, node: Node) -> float:
        """Nanoseconds that a product takes longer where it is made at every step."""
        now = _product_rows(self.graph, node, self.sizes, self.dim, self.batch)
        steps = self.steps(node)
        if not 0 < now < MIN_VECTOR_ROWS or steps < 2:
            return 0.0
        more = MIN_VECTOR_ROWS - max(now, MIN_VECTOR_ROWS / steps)
        row = compute_ns(self.graph, node, self.sizes, self.prices) * self.rows(node) / now
        return steps * (more * row + self.prices.statement)

    def ahead(self) -> set[str]:
        """The equations to make ahead: the cheap side of a minimum cut."""
        network, free = Network(), self.free
        if not any(self.saved(self.graph[n]) for n in free):
            return set()
        for name in free:  # (name,): it is held for the loop
            n = self.graph[name]
            points = self.rows(n) * self.steps(n)
            network.edge(ONE, name, self.saved(n) or self.prices.statement * self.steps(n))
            network.edge(name, (name,), points * keep_ns(n, self.sizes, self.held, self.prices))
            for r, _ in self.graph.readers[name]:
                network.edge((name,), r.name if r.name in free else OTHER)
            for a in n.args:
                if a.name in self.members:
                    network.edge(name, a.name if a.name in free else OTHER)
        side, _ = network.one_side()
        found = free & side
        return found if any(self.saved(self.graph[n]) for n in found) else set()


def _product_rows(
    graph: Graph, node: Node, sizes: Mapping[str, int], dim: str, batch: Collection[str]
) -> int:
    """The rows that a step multiplies by one matrix; 0 where no operand stays the same."""
    if not isinstance(node.op, Einsum) or not is_static(node, sizes):
        return 0
    ins, out = node.op.parts()
    fixed = [
        axes
        for axes, a in zip(ins, node.args, strict=True)
        if axes and not _varies(graph, a, {dim, *batch})
    ]
    if not fixed:
        return 0
    size = dict(zip(out, node.type.sizes(sizes), strict=True))  # pyright: ignore
    own = [n for c, n in size.items() if not any(c in axes for axes in fixed)]
    return prod(own) * node.domain.points(sizes, batch)


def is_static(node: Node, sizes: Mapping[str, int]) -> bool:
    """Are its points a box, and its axes of one length?"""
    if not isinstance(node.type, Type):
        return False
    return not (node.type.mentions() | node.domain.mentions()) - sizes.keys()


def _varies(graph: Graph, ref: Ref, dims: Collection[str]) -> bool:
    return any(not index_symbols(e).isdisjoint(dims) for e in ref.index)


def _loops(graph: Graph, cx: CompileContext) -> Iterator[_OrderedLoop]:
    """The innermost loops that order some of their equations, and not others."""
    axes = frozenset(free_dims(graph, cx).all)
    phases = cx.phases(graph, axes)
    inside: dict[Phase, list[str]] = {}
    for name, phase in phases.items():
        if not isinstance(graph[name].op, Input):
            inside.setdefault(phase[:-1], []).append(name)
    ordered = loops(graph)
    by_data = worth_asking(graph, cx.sizes, MIN_DECIDED_NS)
    rare = guards(graph, cx.sizes).keys() | by_data.keys()
    held = MEMORY_PRICE if cx.tuning.held is None else cx.tuning.held
    ends = {t for n in graph.nodes.values() if isinstance(n.op, Going) for t in n.op.times}
    for loop, names in inside.items():
        ((_, dim, _),) = cast("tuple[tuple[int, str, int]]", loop[-1:])
        below = {n for x, some in inside.items() if x[: len(loop)] == loop for n in some}
        if dim in ends or not ordered[dim] & below:
            continue
        waiting = ordered[dim] | (below - set(names)) | rare
        todo = [n for n in waiting if n in below or isinstance(graph[n].op, Merge)]
        while todo:
            more = {r.name for r, _ in graph.readers[todo.pop()]} & below - waiting
            waiting |= more
            todo += more
        yield _OrderedLoop(
            graph, cx.sizes, dim, frozenset(names), frozenset(waiting), axes, held, cx.target.prices
        )


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether loops have products of few rows, and nothing is to go to slow memory."""
    axes = free_dims(graph, cx).all
    return cx.offloads is None and any(
        0 < _product_rows(graph, n, cx.sizes, d, axes) < MIN_VECTOR_ROWS
        for n in graph.nodes.values()
        for d in n.domain.dims
        if d not in axes
    )


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Make products that wait for nothing of their loop ahead of it, for all of its points."""
    found = list(_loops(graph, cx))
    for dim in graph.declared:
        ahead = {n for x in found if x.dim == dim for n in x.ahead()}
        if ahead and fuel().burn("products of a loop → ahead of it", dim):
            cx.remark(f"{dim}: {', '.join(graph.in_order(ahead))} ahead of the loop")
            graph = vectorize(graph, dim, ahead, cx.sizes)
            found = list(_loops(graph, cx))
    return graph


DISTRIBUTE = Pass("distribute", run, applies)
