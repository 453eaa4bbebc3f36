"""Readers of the first points of an equation get a store of these points alone.

    y[t<T] = f(k[0:min(4,t)], k[max(t-7,0):t+1])
 →  k_first[t<4] = copy(k);  y[t<T] = f(k_first[0:min(4,t)], k[max(t-7,0):t+1])

One store would be as long as the longest wait; now one has 4 points, the other 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.cost.thresholds import MIN_PREFIX_RATIO
from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.types import Range, Tuple
from recurra.ops.elementwise import Copy
from recurra.ops.source import Input
from recurra.polyhedral import isl
from recurra.polyhedral.dependence_distance import lag
from recurra.polyhedral.extent import at_sizes, varies
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting


def prefix(
    graph: Graph, sizes: Mapping[str, int], chunk: int | None = None
) -> tuple[Graph, list[str]]:
    """The graph with stores for first points, a multiple of `chunk`, and what was decided."""
    g = Rewriting.of(graph, sizes)
    said: list[str] = []
    made: dict[str, str] = {}  # equations -> their first points
    for n in graph.nodes.values():
        for r in n.domain:
            count = _first(graph, n, r, sizes)
            count = -(-count // (chunk or 1)) * (chunk or 1)
            if 0 < count <= _points(r, sizes) and fuel().burn("first points", n.name):
                made[n.name] = _apart(graph, g, n, r, count, sizes)
                said.append(f"{n.name}: its first {count} points apart")
                break
    if not said:
        return graph, []
    pairs = (((n, made[n]) if n in made else (n,)) for n in graph.nodes)
    names = [x for pair in pairs for x in pair if x in g.nodes]
    rest = [x for x in g.nodes if x not in names]
    return Graph({k: g.nodes[k] for k in (*names, *rest)}, graph.outputs, graph.dims), said


def _points(extent: Range, sizes: Mapping[str, int]) -> int:
    return 0 if varies(extent, sizes) else extent.size(sizes)


def _first(graph: Graph, node: Node, extent: Range, sizes: Mapping[str, int]) -> int:
    """How many first points of a dim are all that far reads ask for; 0 where it is not so.

    Who reads the last points after the loop over it waits for no more than the loop does.
    """
    if isinstance(node.op, Input) or isinstance(node.type, Tuple) or node.name in graph.outputs:
        return 0
    if varies(extent, sizes) or evaluate(extent.lo, sizes) != 0:
        return 0
    firsts, inside, points = [0], False, extent.size(sizes)
    for reader, k in graph.readers[node.name]:
        if not _is_far(reader, k, node, extent, points):
            continue
        end = _end(reader, reader.args[k], node, extent)
        if 0 < end * MIN_PREFIX_RATIO <= points:
            firsts.append(end)
            inside = inside or extent.dim in reader.domain
        elif extent.dim in reader.domain:
            return 0
    return max(firsts) if inside and len(firsts) <= len(graph.readers[node.name]) else 0


def _is_far(reader: Node, index: int, node: Node, extent: Range, points: int) -> bool:
    """May a read be any number of steps behind?"""
    e = reader.args[index].index[node.domain.dims.index(extent.dim)]
    if extent.dim not in reader.domain:
        return True
    behind = lag(extent.dim, e, reader.domain, merge_condition(reader, index))
    return behind.exact is None and (behind.high is None or behind.high + 1 >= points)


def _end(reader: Node, ref: Ref, node: Node, extent: Range) -> int:
    """One past the last point that is asked for; 0: nobody knows."""
    e = ref.index[node.domain.dims.index(extent.dim)]
    top = isl.largest(e.hi if isinstance(e, Slice) else e + 1, at_sizes(reader.domain, {}))
    return top if isinstance(top, int) else 0


def _apart(
    graph: Graph,
    rewriting: Rewriting,
    node: Node,
    extent: Range,
    count: int,
    sizes: Mapping[str, int],
) -> str:
    """Has far reads read a copy of the first points; returns its name."""
    domain = node.domain.with_range(replace(extent, hi=count))
    first = Node(
        rewriting.fresh(f"{node.name}_first"),
        Copy(),
        (rewriting.read(node.name),),
        domain,
        node.type,
        node.loc,
    )
    rewriting.put(first)
    for reader, k in graph.readers[node.name]:
        far = _is_far(reader, k, node, extent, extent.size(sizes))
        if far and 0 < _end(reader, reader.args[k], node, extent) <= count:
            now = rewriting[reader.name]
            args = (*now.args[:k], replace(now.args[k], name=first.name), *now.args[k + 1 :])
            rewriting.put(replace(now, args=args))
    return first.name


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether first points are read for ever."""
    return any(_first(graph, n, r, cx.sizes) for n in graph.nodes.values() for r in n.domain)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Give first points that are read for ever a store of their own.

    A loop that has been split begins at a whole launch already.
    """
    new, decided = prefix(graph, cx.sizes, None if cx.is_split else cx.tuning.chunk)
    cx.remark(*decided)
    return new


SPLIT_LIVE_RANGES = Pass("split_live_ranges", run, applies)
