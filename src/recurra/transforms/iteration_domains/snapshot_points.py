"""Copy points that are read long after they are computed to a store of their own.

    x[t<T] = merge(x0, f(x[t-1]), ..)          x[t<T] = merge(x0, f(x[t-1]), ..)
    y = g(x[T//2])                          →  x_kept[T//2<=t<T//2+1] = copy(x)
                                               y = g(x_kept[T//2])

A store has as many points as the longest wait lasts: here T/2 before, one afterwards. The copy runs
in the loop of what it copies, at these points alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from recurra.cost.thresholds import MIN_KEPT_BYTES, MIN_PREFIX_RATIO
from recurra.ir.expr import evaluate, symbols
from recurra.ir.graph import Graph, Index, Node, Slice, merge_condition
from recurra.ir.types import Domain, Range, Tuple
from recurra.ops.elementwise import Copy, Going
from recurra.ops.reduction import Fold
from recurra.ops.source import Input
from recurra.polyhedral.dependence_distance import lag
from recurra.polyhedral.extent import varies
from recurra.transforms.compile_context import CompileContext, Pass, Phase
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting

Lengths = Mapping[str, int]  # points that a store holds, by dim
Loop = tuple[int, str, int]  # place, dim, direction


@dataclass(frozen=True)
class _Read:
    """Operand `k` of `reader`, and the points that the store must hold for it.

    `box` is the part of the domain that it reads, if that is a known one; of these, `points` wait
    for it at once.
    """

    reader: str
    k: int
    lengths: Lengths
    box: Domain | None
    points: int


def _late_reads(
    graph: Graph, node: Node, sizes: Mapping[str, int], phases: Mapping[str, Phase]
) -> list[_Read]:
    """The reads that alone make a store much longer; [] if copies for them save too little."""
    if not _may_copy(graph, node, sizes) or node.name not in phases:
        return []
    reads = [
        _read(node, reader, k, sizes, phases)
        for reader, k in graph.readers[node.name]
        if not isinstance(reader.op, Fold)
    ]
    far = [r for r in reads if r.box and r.points < prod(r.lengths.values())]
    rest = _longest(r.lengths for r in reads if r not in far)
    late = [r for r in far if any(n > rest.get(d, 1) for d, n in r.lengths.items())]
    before = prod(_longest(r.lengths for r in reads).values())
    after = prod(_longest(r.lengths for r in reads if r not in late).values())
    copied = sum(dict((r.box, r.points) for r in late).values())
    saved = (before - after - copied) * node.tensor.nbytes(sizes)
    worth = saved >= MIN_KEPT_BYTES and before >= MIN_PREFIX_RATIO * (after + copied)
    return late if worth else []


def _longest(lengths: Iterable[Lengths]) -> dict[str, int]:
    """The points that a store holds for several reads."""
    out: dict[str, int] = {}
    for each in lengths:
        for dim, n in each.items():
            out[dim] = max(out.get(dim, 1), n)
    return out


def _may_copy(graph: Graph, node: Node, sizes: Mapping[str, int]) -> bool:
    """Tell whether an equation has a store of known size, of which a reader reads known points."""
    fixed = isinstance(node.op, Input) or isinstance(node.type, Tuple) or node.name in graph.outputs
    if fixed or not node.domain or any(varies(r, sizes) for r in node.domain):
        return False
    if node.type.mentions() - sizes.keys():
        return False
    partly = any(
        _known_points(e, r, sizes)
        for reader, k in graph.readers[node.name]
        for e, r in zip(reader.args[k].index, node.domain, strict=True)
    )
    ends = (n.op.times for n in graph.nodes.values() if isinstance(n.op, Going))
    return partly and all(set(times).isdisjoint(node.domain.dims) for times in ends)


def _known_points(index: Index, extent: Range, sizes: Mapping[str, int]) -> Range | None:
    """The points that an index reads, if they are a part of the dim that bounds alone name."""
    lo, hi = (index.lo, index.hi) if isinstance(index, Slice) else (index, index + 1)
    padded = isinstance(index, Slice) and index.pad is not None
    if padded or (symbols(lo) | symbols(hi)) - sizes.keys():
        return None
    first, end = evaluate(lo, sizes), evaluate(hi, sizes)
    inside = evaluate(extent.lo, sizes) <= first < end <= evaluate(extent.hi, sizes)
    return Range(extent.dim, hi, lo) if inside and end - first < extent.size(sizes) else None


def _read(
    node: Node, reader: Node, k: int, sizes: Mapping[str, int], phases: Mapping[str, Phase]
) -> _Read:
    """Count the points of `node` that the store must hold for a read, loop by loop."""
    loops, around = _loops(phases, node.name), _loops(phases, reader.name)
    lengths, box = dict[str, int](), node.domain
    shared, moved, fixed, count = True, False, True, 1
    for depth, loop in enumerate(loops):
        _, dim, step = loop
        shared = shared and around[depth : depth + 1] == (loop,)
        r, e = node.domain[dim], reader.args[k].index[node.domain.dims.index(dim)]
        points = _known_points(e, r, sizes)
        own = shared and e == r.sym
        if points is not None:
            end, start = (r.hi, points.lo) if step > 0 else (points.hi, r.lo)
            lengths[dim] = evaluate(end, sizes) - evaluate(start, sizes)
            box = box.with_range(points)
            count *= points.size(sizes)
        elif own and not moved:
            lengths[dim] = 1
        else:
            high = None
            if shared and not moved:
                behind = lag(dim, e, reader.domain, merge_condition(reader, k))
                high = (behind if step > 0 else -behind).high
                high = 0 if high == 1 else high  # the step before is a variable
            lengths[dim] = r.size(sizes) if high is None else max(1, min(r.size(sizes), high + 1))
        moved = moved or (shared and not own)
        fixed = fixed and (own or points is not None)
    return _Read(reader.name, k, lengths, box if fixed and box != node.domain else None, count)


def _loops(phases: Mapping[str, Phase], name: str) -> tuple[Loop, ...]:
    """The loops around an equation, outermost first."""
    return cast("tuple[Loop, ...]", phases.get(name, (0,))[:-1])


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether known points of an equation in a loop are read."""
    return any(_may_copy(graph, n, cx.sizes) for n in graph.nodes.values())


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Copy points that are read long after they are computed to a store of their own."""
    g, phases = Rewriting.of(graph, cx.sizes), cx.phases(graph, ())
    for n in graph.nodes.values():
        late = _late_reads(graph, n, cx.sizes, phases)
        if not late or not fuel().burn("points that are read late", n.name):
            continue
        for box in dict.fromkeys(r.box for r in late):
            assert box is not None
            copy = Node(g.fresh(f"{n.name}_kept"), Copy(), (g.read(n.name),), box, n.type, n.loc)
            g.put(copy)
            for r in late:
                if r.box == box:
                    reader = g[r.reader]
                    g.put(reader.with_operand(r.k, replace(reader.args[r.k], name=copy.name)))
        cx.remark(f"{n.name}: what is read late of it apart")
    return g.graph


SNAPSHOT_POINTS = Pass("snapshot_points", run, applies)
