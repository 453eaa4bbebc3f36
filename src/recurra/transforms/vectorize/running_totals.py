"""running_totals: make a sum of all points so far one operation, if it alone orders its loop.

    c[n<N] = merge(x[0], c[n-1] + x[n], when=(n == 0, n > 0))   →   c[n<N] = pick(s, at=n)
                                                                    s = cumsum(x[0:N], axis=0)

The same for products and maxima (Blelloch, 1990). Nothing orders the loop then, and `distribute`
makes its dim an axis. Where each statement is a call, as on NumPy, that is N times as fast; XLA's
own loop is faster than its cumulative sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from recurra.cost.thresholds import MEMORY_PRICE
from recurra.ir.expr import compare, lin
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import Axis
from recurra.ir.types import Range, Type
from recurra.ops.control import Merge
from recurra.ops.elementwise import Add, Maximum, Mul
from recurra.ops.indexing import Pick
from recurra.ops.ordering import CumMax
from recurra.ops.scan import CumProd, CumSum
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.vectorize.distribute import has_loops
from recurra.transforms.vectorize.loop_groups import LoopGroup, loops_of


@dataclass(frozen=True)
class Total:
    """A scan: `name` is `first` at the first point, elsewhere `point` combined with its neighbor.

    `joined` is the equation that combines them.
    """

    name: str
    joined: str
    first: Ref
    point: Ref
    op: Axis

    @property
    def members(self) -> set[str]:
        return {self.name, self.joined}


def total_of(graph: Graph, node: Node, dim: str) -> Total | None:
    """Return the running total along a dim that an equation is, if it is one."""
    if not isinstance(node.op, Merge) or len(node.args) != 2 or dim not in node.domain:
        return None
    r, (first, rest) = node.domain[dim], node.args
    joined = graph[rest.name]
    ways = [(r.lo, -1, CumSum(axis=0)), (r.hi - 1, 1, CumSum(axis=0, reverse=True))]
    for edge, step, total in ways:
        before = Ref(node.name, node.domain.point(dim, r.sym + step))
        begins = node.op.when[0] == compare("==", r.sym, edge)
        if not begins or rest.index != joined.domain.identity:
            continue
        others = [a for a in joined.args if a != before]
        op = _cumulative(joined, total)
        if op is not None and len(joined.args) == 2 and len(others) == 1:
            return Total(node.name, joined.name, first, others[0], op)
    return None


def _cumulative(joined: Node, total: CumSum) -> Axis | None:
    """The operator that scans a whole axis as an equation does step by step; None if none does."""
    match joined.op:
        case Add(labels=""):
            return total
        case Mul(labels="") if not total.reverse:
            return CumProd(axis=0)
        case Maximum(labels="") if not total.reverse:
            return CumMax(axis=0)
        case _:
            return None


def replace_total(graph: Graph, total: Total, dim: str, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with a total as one operation along a dim."""
    g, node = Rewriting.of(graph, sizes), graph[total.name]
    r = node.domain[dim]
    g.loc = node.loc
    point = _points(g, node, total, r)
    every = Slice(r.lo, r.hi)
    index = tuple(every if e == r.sym else e for e in g[point.name].domain.identity)
    summed = g.emit(total.op, (Ref(point.name, index),), node.domain.without(dim), node.name)
    pick = Pick(axis=0, at_=lin([(r.sym, 1), (r.lo, -1)]))
    g.put(Node(node.name, pick, (summed,), node.domain, node.type, node.loc))
    return g.graph.live()


def _points(g: Rewriting, node: Node, total: Total, extent: Range) -> Ref:
    """A read of the values that a total combines, over all of its points."""
    source = g[total.point.name]
    same = total.first.at({extent.dim: extent.lo}) == total.point.at({extent.dim: extent.lo})
    if same and total.point == g.read(source.name) and source.domain == node.domain:
        return total.point
    name = g.fresh(f"{node.name}_points")
    g.put(Node(name, node.op, (total.first, total.point), node.domain, node.type, node.loc))
    return g.read(name)


def _is_profitable(loop: LoopGroup, total: Total) -> bool:
    """Tell whether one operation is cheaper, with what it holds for all points."""
    node = loop.graph[total.name]
    if not isinstance(node.type, Type) or not loop.is_box(node):
        return False
    prices, elements = loop.prices, loop.rows(node) * prod(node.type.sizes(loop.sizes))
    at_once = loop.steps(node) * elements * prices.of(total.op.name)
    held = sum(loop.held_ns(n) for n in (total.name, total.point.name) if n in loop.below)
    return len(total.members) * loop.steps(node) * prices.fused > at_once + held


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Make a running sum, product or maximum that alone orders its loop one operation."""
    for loop in loops_of(graph, cx, MEMORY_PRICE):
        every = (total_of(graph, graph[n], loop.dim) for n in graph.in_order(loop.members))
        totals = [t for t in every if t is not None]
        if loop.fixed != frozenset(n for t in totals for n in t.members):
            continue
        for t in totals:
            if _is_profitable(loop, t) and fuel().burn("a running total → one operation", t.name):
                graph = replace_total(graph, t, loop.dim, cx.sizes)
                cx.remark(f"{t.name}: one {t.op.name} along {loop.dim}")
    return graph


RUNNING_TOTALS = Pass("running_totals", run, has_loops)
