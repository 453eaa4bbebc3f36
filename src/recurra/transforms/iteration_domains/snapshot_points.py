"""Points that are read long after they are made get a store of their own.

    x[t<T] = merge(x0, f(x[t-1]), ..)          x[t<T] = merge(x0, f(x[t-1]), ..)
    y = g(x[T//2])                          →  x_kept[T//2<=t<T//2+1] = copy(x)
                                               y = g(x_kept[T//2])

A store has as many points as the longest wait lasts: half of them here, where now it has one. The
copy runs in the loop of what it copies, at these points alone.
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

Need = Mapping[str, int]  # points that a store has, by dim


@dataclass(frozen=True)
class _Read:
    """A read, the points that the store would need for it, and, if known, the box that it reads.

    Of the box, `points` wait for it at once.
    """

    reader: str
    k: int
    need: Need
    box: Domain | None
    points: int


def snapshot_points(
    graph: Graph, sizes: Mapping[str, int], phases: Mapping[str, Phase]
) -> tuple[Graph, list[str]]:
    """The graph with stores for points that are read late, and what was decided.

    `phases`: the loops around each equation that runs in one (`schedule.tree.phases`).
    """
    g, said = Rewriting.of(graph, sizes), list[str]()
    for n in graph.nodes.values():
        late = _late(graph, n, sizes, phases)
        if late and fuel().burn("points that are read late", n.name):
            for box in dict.fromkeys(r.box for r in late):
                assert box is not None
                name = g.fresh(f"{n.name}_kept")
                copy = Node(name, Copy(), (g.read(n.name),), box, n.type, n.loc)
                g.put(copy)
                for r in late:
                    if r.box == box:
                        now = g[r.reader]
                        a = replace(now.args[r.k], name=copy.name)
                        g.put(now.with_operand(r.k, a))
            said.append(f"{n.name}: what is read late of it apart")
    return (g.graph, said) if said else (graph, [])


def _late(
    graph: Graph, node: Node, sizes: Mapping[str, int], phases: Mapping[str, Phase]
) -> list[_Read]:
    """The reads for which alone a store would be much longer; none if that saves too little."""
    if not _may_be_kept(graph, node, sizes) or node.name not in phases:
        return []
    reads = [
        _read(node, reader, k, sizes, phases)
        for reader, k in graph.readers[node.name]
        if not isinstance(reader.op, Fold)
    ]
    far = [r for r in reads if r.box and r.points < prod(r.need.values())]
    rest = _most(r.need for r in reads if r not in far)
    late = [r for r in far if any(n > rest.get(d, 1) for d, n in r.need.items())]
    near = _most(r.need for r in reads if r not in late)
    kept = sum(dict((r.box, r.points) for r in late).values())
    before, after = (prod(n.values()) for n in (_most(r.need for r in reads), near))
    saved = (before - after - kept) * node.tensor.nbytes(sizes)
    worth = saved >= MIN_KEPT_BYTES and before >= MIN_PREFIX_RATIO * (after + kept)
    return late if worth else []


def _most(needs: Iterable[Need]) -> dict[str, int]:
    """The points that a store has for several reads."""
    out: dict[str, int] = {}
    for need in needs:
        for dim, n in need.items():
            out[dim] = max(out.get(dim, 1), n)
    return out


def _may_be_kept(graph: Graph, node: Node, sizes: Mapping[str, int]) -> bool:
    """Is a store as long as its readers want it, and are the points that one reads known?"""
    given = isinstance(node.op, Input) or isinstance(node.type, Tuple) or node.name in graph.outputs
    if given or not node.domain or any(varies(r, sizes) for r in node.domain):
        return False
    if node.type.mentions() - sizes.keys():
        return False
    partly = any(
        _place(e, r, sizes)
        for reader, k in graph.readers[node.name]
        for e, r in zip(reader.args[k].index, node.domain, strict=True)
    )
    ends = (n.op.times for n in graph.nodes.values() if isinstance(n.op, Going))
    return partly and all(set(times).isdisjoint(node.domain.dims) for times in ends)


def _place(index: Index, extent: Range, sizes: Mapping[str, int]) -> Range | None:
    """The points that an index reads, if they are a part of the dim, the same for all readers."""
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
    """Count the points of `node` that a read needs stored, in loops around both and others."""
    loops, around = _loops(phases, node.name), _loops(phases, reader.name)
    need, box = dict[str, int](), node.domain
    shared, open_, fixed, count = True, False, True, 1
    for depth, loop in enumerate(loops):
        _, dim, step = loop
        shared = shared and around[depth : depth + 1] == (loop,)
        r, e = node.domain[dim], reader.args[k].index[node.domain.dims.index(dim)]
        points = _place(e, r, sizes)
        own = shared and e == r.sym
        if points is not None:
            end, start = (r.hi, points.lo) if step > 0 else (points.hi, r.lo)
            need[dim] = evaluate(end, sizes) - evaluate(start, sizes)
            box = box.with_range(points)
            count *= points.size(sizes)
        elif own and not open_:
            need[dim] = 1
        else:
            high = None
            if shared and not open_:
                behind = lag(dim, e, reader.domain, merge_condition(reader, k))
                high = (behind if step > 0 else -behind).high
                high = 0 if high == 1 else high  # the step before is a variable
            need[dim] = r.size(sizes) if high is None else max(1, min(r.size(sizes), high + 1))
        open_ = open_ or (shared and not own)
        fixed = fixed and (own or points is not None)
    return _Read(reader.name, k, need, box if fixed and box != node.domain else None, count)


def _loops(phases: Mapping[str, Phase], name: str) -> tuple[tuple[int, str, int], ...]:
    """The loops around an equation: their places, dims and directions."""
    return cast("tuple[tuple[int, str, int], ...]", phases.get(name, (0,))[:-1])


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether points are read at a place that is known, of what runs in a loop."""
    return any(_may_be_kept(graph, n, cx.sizes) for n in graph.nodes.values())


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Give points that are read long after they are made a store of their own."""
    new, decided = snapshot_points(graph, cx.sizes, cx.phases(graph, ()))
    cx.remark(*decided)
    return new


SNAPSHOT_POINTS = Pass("snapshot_points", run, applies)
