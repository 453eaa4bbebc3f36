"""Readers of the first points of an equation, or of every nth, get a store of these points alone.

    y[t<T] = f(k[0:min(4,t)], k[max(t-7,0):t+1])
 →  k_first[t<4] = copy(k);  y[t<T] = f(k_first[0:min(4,t)], k[max(t-7,0):t+1])

    y[t<T] = f(k[0:t:64], k[max(t-7,0):t+1])
 →  k_every[t<T] = copy(k);  y[t<T] = f(k_every[0:t:64], k[max(t-7,0):t+1])

One store would be as long as the longest wait; now one has 4 points, or T / 64, the other 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recurra.cost.thresholds import MIN_PREFIX_RATIO
from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.types import Range, Tuple
from recurra.ops.elementwise import Copy
from recurra.ops.source import Input
from recurra.polyhedral import isl
from recurra.polyhedral.dependence_distance import lag
from recurra.polyhedral.extent import at_sizes, varies
from recurra.polyhedral.strides import Stride, stride
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting


@dataclass(frozen=True)
class Apart:
    """Points along the range of a dim that have a store of their own: the first, or a stride."""

    extent: Range
    points: int
    stride: Stride | None = None

    def __str__(self) -> str:
        if self.stride is None:
            return f"its first {self.points} points apart"
        return f"{self.points} points, {self.stride.step} apart, in a store of their own"

    @property
    def kept(self) -> Range:
        """The points at which the copy is made."""
        return self.extent if self.stride else replace(self.extent, hi=self.points)


def split(
    graph: Graph, sizes: Mapping[str, int], chunk: int | None = None
) -> tuple[Graph, list[str]]:
    """The graph with stores for points apart, first ones a multiple of `chunk`, and what is so."""
    g = Rewriting.of(graph, sizes)
    said: list[str] = []
    made: dict[str, str] = {}  # equations -> the points apart
    for n in graph.nodes.values():
        for r in n.domain:
            found = _first(graph, n, r, sizes, chunk or 1) or _strided(graph, n, r, sizes)
            if found is not None and fuel().burn("points apart", n.name):
                made[n.name] = _copied(graph, g, n, found, sizes)
                said.append(f"{n.name}: {found}")
                break
    if not said:
        return graph, []
    pairs = (((n, made[n]) if n in made else (n,)) for n in graph.nodes)
    names = [x for pair in pairs for x in pair if x in g.nodes]
    rest = [x for x in g.nodes if x not in names]
    return Graph({k: g.nodes[k] for k in (*names, *rest)}, graph.outputs, graph.dims), said


def _may_split(graph: Graph, node: Node, extent: Range, sizes: Mapping[str, int]) -> bool:
    """Tell whether an equation may be split: an input, a tuple or an output stays as it is."""
    if isinstance(node.op, Input) or isinstance(node.type, Tuple) or node.name in graph.outputs:
        return False
    return not varies(extent, sizes)


def _first(
    graph: Graph, node: Node, extent: Range, sizes: Mapping[str, int], chunk: int
) -> Apart | None:
    """The first points of a dim, if these are all that far reads ask for.

    Who reads the last points after the loop over it waits for no more than the loop does.
    """
    if not _may_split(graph, node, extent, sizes) or evaluate(extent.lo, sizes) != 0:
        return None
    firsts, inside, points = [0], False, extent.size(sizes)
    for reader, k in graph.readers[node.name]:
        if not _is_far(reader, k, node, extent, points):
            continue
        end = _end(reader, reader.args[k], node, extent)
        if 0 < end * MIN_PREFIX_RATIO <= points:
            firsts.append(end)
            inside = inside or extent.dim in reader.domain
        elif extent.dim in reader.domain:
            return None
    count = -(-max(firsts) // chunk) * chunk
    some = inside and len(firsts) <= len(graph.readers[node.name])
    return Apart(extent, count) if some and count <= points else None


def _strided(graph: Graph, node: Node, extent: Range, sizes: Mapping[str, int]) -> Apart | None:
    """The points a stride apart, if these are all that far reads ask for, and near ones do not."""
    if not _may_split(graph, node, extent, sizes):
        return None
    axis, points = node.domain.dims.index(extent.dim), extent.size(sizes)
    readers = graph.readers[node.name]
    far = [(r, k) for r, k in readers if _is_far(r, k, node, extent, points)]
    if not far or len(far) == len(readers):
        return None
    found = stride([(r.args[k].index[axis], r.domain) for r, k in far], sizes)
    if found is None or found.step < MIN_PREFIX_RATIO:
        return None
    return Apart(extent, -(-points // found.step), found)


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


def _copied(
    graph: Graph, rewriting: Rewriting, node: Node, apart: Apart, sizes: Mapping[str, int]
) -> str:
    """Has far reads read a copy of the points apart; returns its name."""
    extent = apart.extent
    copy = Node(
        rewriting.fresh(f"{node.name}_{'every' if apart.stride else 'first'}"),
        Copy(),
        (rewriting.read(node.name),),
        node.domain.with_range(apart.kept),
        node.type,
        node.loc,
    )
    rewriting.put(copy)
    for reader, k in graph.readers[node.name]:
        far = _is_far(reader, k, node, extent, extent.size(sizes))
        end = 0 if apart.stride else _end(reader, reader.args[k], node, extent)
        if far and (apart.stride or 0 < end <= apart.points):
            now = rewriting[reader.name]
            args = (*now.args[:k], replace(now.args[k], name=copy.name), *now.args[k + 1 :])
            rewriting.put(replace(now, args=args))
    return copy.name


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether some points are read for ever, others soon."""
    extents = ((n, r) for n in graph.nodes.values() for r in n.domain)
    return any(
        _first(graph, n, r, cx.sizes, 1) or _strided(graph, n, r, cx.sizes) for n, r in extents
    )


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Give points that are read for ever a store of their own.

    A loop that has been split begins at a whole launch already.
    """
    new, decided = split(graph, cx.sizes, None if cx.is_split else cx.tuning.chunk)
    cx.remark(*decided)
    return new


SPLIT_LIVE_RANGES = Pass("split_live_ranges", run, applies)
