"""Copy the first points of an equation, or every nth, to a store of their own for far reads.

    y[t<T] = f(k[0:min(4,t)], k[max(t-7,0):t+1])
 →  k_first[t<4] = copy(k);  y[t<T] = f(k_first[0:min(4,t)], k[max(t-7,0):t+1])

    y[t<T] = f(k[0:t:64], k[max(t-7,0):t+1])
 →  k_every[t<T] = copy(k);  y[t<T] = f(k_every[0:t:64], k[max(t-7,0):t+1])

One store would be as long as the longest wait. Two stores have 4 points, or T / 64, and 8.
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
class CopiedPoints:
    """Points along the range of a dim to copy: the first `points`, or `points` a stride apart."""

    extent: Range
    points: int
    stride: Stride | None = None

    def __str__(self) -> str:
        if self.stride is None:
            return f"its first {self.points} points apart"
        return f"{self.points} points, {self.stride.step} apart, in a store of their own"

    @property
    def range(self) -> Range:
        """The points at which the copy runs."""
        return self.extent if self.stride else replace(self.extent, hi=self.points)


def _copied_points(
    graph: Graph, node: Node, extent: Range, sizes: Mapping[str, int], chunk: int
) -> CopiedPoints | None:
    """The points along a dim to copy; inputs, tuples and outputs stay as they are."""
    if isinstance(node.op, Input) or isinstance(node.type, Tuple) or node.name in graph.outputs:
        return None
    if varies(extent, sizes):
        return None
    return _first(graph, node, extent, sizes, chunk) or _strided(graph, node, extent, sizes)


def _first(
    graph: Graph, node: Node, extent: Range, sizes: Mapping[str, int], chunk: int
) -> CopiedPoints | None:
    """The first points of a dim, a multiple of `chunk`, if all far reads are of these.

    A reader behind the loop that reads its last points waits no longer than the loop runs.
    """
    if evaluate(extent.lo, sizes) != 0:
        return None
    ends, inside, points = [0], False, extent.size(sizes)
    for reader, k in graph.readers[node.name]:
        if not _is_far(reader, k, node, extent, points):
            continue
        end = _end(reader, reader.args[k], node, extent)
        if 0 < end * MIN_PREFIX_RATIO <= points:
            ends.append(end)
            inside = inside or extent.dim in reader.domain
        elif extent.dim in reader.domain:
            return None
    count = -(-max(ends) // chunk) * chunk
    some = inside and len(ends) <= len(graph.readers[node.name])
    return CopiedPoints(extent, count) if some and count <= points else None


def _strided(
    graph: Graph, node: Node, extent: Range, sizes: Mapping[str, int]
) -> CopiedPoints | None:
    """The points a stride apart, if all far reads are of these, and other reads are near."""
    axis, points = node.domain.dims.index(extent.dim), extent.size(sizes)
    readers = graph.readers[node.name]
    far = [(r, k) for r, k in readers if _is_far(r, k, node, extent, points)]
    if not far or len(far) == len(readers):
        return None
    found = stride([(r.args[k].index[axis], r.domain) for r, k in far], sizes)
    if found is None or found.step < MIN_PREFIX_RATIO:
        return None
    return CopiedPoints(extent, -(-points // found.step), found)


def _is_far(reader: Node, operand: int, node: Node, extent: Range, points: int) -> bool:
    """Tell whether a read may be any number of steps behind."""
    e = reader.args[operand].index[node.domain.dims.index(extent.dim)]
    if extent.dim not in reader.domain:
        return True
    behind = lag(extent.dim, e, reader.domain, merge_condition(reader, operand))
    return behind.exact is None and (behind.high is None or behind.high + 1 >= points)


def _end(reader: Node, ref: Ref, node: Node, extent: Range) -> int:
    """One past the last point that is read; 0 if unknown."""
    e = ref.index[node.domain.dims.index(extent.dim)]
    top = isl.largest(e.hi if isinstance(e, Slice) else e + 1, at_sizes(reader.domain, {}))
    return top if isinstance(top, int) else 0


def _copy(
    graph: Graph, rewriting: Rewriting, node: Node, copied: CopiedPoints, sizes: Mapping[str, int]
) -> str:
    """Make far reads read a copy of some points; return its name."""
    extent, stem = copied.extent, f"{node.name}_{'every' if copied.stride else 'first'}"
    domain = node.domain.with_range(copied.range)
    args = (rewriting.read(node.name),)
    copy = Node(rewriting.fresh(stem), Copy(), args, domain, node.type, node.loc)
    rewriting.put(copy)
    for reader, k in graph.readers[node.name]:
        far = _is_far(reader, k, node, extent, extent.size(sizes))
        end = 0 if copied.stride else _end(reader, reader.args[k], node, extent)
        if far and (copied.stride or 0 < end <= copied.points):
            now = rewriting[reader.name]
            rewriting.put(now.with_operand(k, replace(now.args[k], name=copy.name)))
    return copy.name


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether some points are read for long, and others soon."""
    extents = ((n, r) for n in graph.nodes.values() for r in n.domain)
    return any(_copied_points(graph, n, r, cx.sizes, 1) for n, r in extents)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Copy points that are read for long to a store of their own.

    First points are copied up to a multiple of the chunk, unless the loop has been split, so that
    it begins at a whole launch already.
    """
    chunk = 1 if cx.is_split else cx.tuning.launch_steps or 1
    g, copies = Rewriting.of(graph, cx.sizes), dict[str, str]()
    for n in graph.nodes.values():
        for r in n.domain:
            found = _copied_points(graph, n, r, cx.sizes, chunk)
            if found is not None and fuel().burn("points apart", n.name):
                copies[n.name] = _copy(graph, g, n, found, cx.sizes)
                cx.remark(f"{n.name}: {found}")
                break
    order = [x for n in graph.nodes for x in (n, copies.get(n)) if x is not None]
    return Graph({n: g.nodes[n] for n in order}, graph.outputs, graph.dims)


SPLIT_LIVE_RANGES = Pass("split_live_ranges", run, applies)
