"""distribute: move what a loop does not order out of it, to run at all points at once.

    y[t<T] = einsum(x[t], w)                            y: [T] = einsum(x[0:T], w)
    h[t<T] = merge(0, f(h[t-1], y), when=..)       →    h[t<T] = merge(0, f(h[t-1], y[t]), when=..)
    z[t<T] = g(h)                                       z: [T] = g(h[0:T])

The loop is distributed over what it orders and what it does not (Allen and Kennedy, 1987): a
statement costs something at every step, and a product of few rows takes as long as one of many.
Values that cross the border are held for all points, so the cheapest border is a minimum cut. A
loop that orders nothing has no border. Products of few rows leave their loop before it is decided
what is kept for learning, all else after `tile`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from recurra.cost.thresholds import MIN_VECTOR_ROWS
from recurra.ir.graph import Graph, Node
from recurra.ir.order import components
from recurra.ops.source import Input
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.vectorize.loop_groups import LoopGroup, loops_of, product_rows
from recurra.transforms.vectorize.plan import Decision, extend_output_axes, free_dims
from recurra.transforms.vectorize.vectorize import vectorize

Side = Callable[[LoopGroup], set[str]]


def has_small_products(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether loops have products of few rows, and nothing is to go to slow memory."""
    axes = free_dims(graph, cx).all
    return cx.offloads is None and any(
        0 < product_rows(graph, n, cx.sizes, d, axes) < MIN_VECTOR_ROWS
        for n in graph.nodes.values()
        for d in n.domain.dims
        if d not in axes
    )


def run_products(graph: Graph, cx: CompileContext) -> Graph:
    """Compute products of few rows that read nothing of their loop ahead of it, at all points."""
    return _distribute(graph, cx, cx.memory_price, (LoopGroup.products_ahead,))


def has_loops(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether there is a loop, and nothing is to go to slow memory."""
    if cx.offloads is not None:
        return False
    axes = free_dims(graph, cx).all
    computed = (n for n in graph.nodes.values() if not isinstance(n.op, Input))
    return any(d not in axes for n in computed for d in n.domain.dims)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Compute what loops do not order before or after them, if that holds nothing more."""
    return _distribute(graph, cx, inf, (LoopGroup.movable_before, LoopGroup.movable_after))


def _distribute(
    graph: Graph, cx: CompileContext, memory_price: float, sides: Sequence[Side]
) -> Graph:
    while found := _movable(graph, cx, memory_price, sides):
        dim, members = found
        cx.axes = extend_output_axes(
            cx.axes, graph, (Decision(dim, frozenset(members), False, ""),)
        )
        cx.remark(f"{dim}: {', '.join(graph.in_order(members))} for all points of the loop at once")
        new = vectorize(graph, dim, members, cx.sizes)
        graph = _shared(new, [n for n in new.nodes if n in members or n not in graph.nodes])
    return graph


def _movable(
    graph: Graph, cx: CompileContext, memory_price: float, sides: Sequence[Side]
) -> tuple[str, set[str]] | None:
    """The first dim whose loops are to be distributed, and the equations that leave them."""
    loops = list(loops_of(graph, cx, memory_price))
    for dim in graph.declared:
        for side in sides:
            moved = {n for loop in loops if loop.dim == dim for n in side(loop)}
            if moved and fuel().burn("what a loop does not order → all points at once", dim):
                return dim, moved
    return None


def _shared(graph: Graph, names: Sequence[str]) -> Graph:
    """Merge equal equations among some: two loops may each have had one."""
    reads = {n: [a.name for a in graph[n].args] for n in names}
    first: dict[object, str] = {}
    to: dict[str, str] = {}

    def redirected(node: Node) -> Node:
        return replace(node, args=tuple(replace(a, name=to.get(a.name, a.name)) for a in node.args))

    for part in components(list(names), lambda n: [x for x in reads[n] if x in reads]):
        for name in part:
            n = redirected(graph[name])
            one = first.setdefault((n.op, n.args, n.domain, n.type), name)
            if one != name and name not in graph.outputs:
                to[name] = one
    return graph.update(map(redirected, graph.nodes.values())) if to else graph


PRODUCTS_AHEAD = Pass("products_ahead", run_products, has_small_products)
DISTRIBUTE = Pass("distribute", run, has_loops)
