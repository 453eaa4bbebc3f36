"""Decide which dims become axes, and of which equations; the others stay loops.

A dim that imposes no order (no cycle moves along it) becomes an axis of every equation that can
have it. A dim along which some cycle moves stays a loop; `tile` splits what is free along it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from recurra.analysis.data_conditions import worthwhile_conditions
from recurra.analysis.demanded_points import is_even
from recurra.analysis.guards import guards
from recurra.cost.model import compute_ns
from recurra.cost.thresholds import (
    MAX_BATCH_LAST_GAIN,
    MIN_DECIDED_NS,
    MIN_VECTOR_ROWS,
    SCATTERED_ELEMENT_NS,
    TURNED_ELEMENT_NS,
    VECTOR_ELEMENTS,
)
from recurra.ir.dims import Role
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph, Node, index_symbols, merge_condition
from recurra.ir.op import Elementwise, Reduction
from recurra.ir.order import components
from recurra.ir.output_axes import Axes
from recurra.ir.types import Type
from recurra.ops.indexing import Take
from recurra.ops.source import Input
from recurra.polyhedral.dependence import is_feasible
from recurra.polyhedral.dependence_distance import Lag, direction, lag
from recurra.transforms.compile_context import CompileContext, FreeDims, Pass
from recurra.transforms.permutations.gathers import number_by_layout
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.vectorize.vectorize import vectorize, with_axis

Edge = tuple[str, int]  # an equation and the place of one of its operands


@dataclass(frozen=True)
class Decision:
    """`dim` becomes an axis, first or last, of `members`; `why` is the reason, for remarks."""

    dim: str
    members: frozenset[str]
    last: bool
    why: str

    def __str__(self) -> str:
        place = "last" if self.last else "first"
        why = f" ({self.why})" if self.why else ""
        return f"{self.dim}: {place} axis of {len(self.members)} equations{why}"


@dataclass(frozen=True)
class Cycle:
    """Equations that depend on each other, so that one of `dims` orders them, and their edges.

    `loop` is the first dim over which a loop of them is legal; None if none is known to be.
    """

    members: list[str]
    edges: list[Edge]
    dims: list[str]
    loop: str | None


def ordered_dims(graph: Graph) -> dict[str, set[str]]:
    """Map each dim to the equations that must run along it in order (Allen and Kennedy, 1987)."""
    out: dict[str, set[str]] = {d: set() for d in graph.declared}
    for c in nested_cycles(graph):
        for d in c.dims if c.loop is None else (c.loop,):  # if unknown, any of them
            out[d] |= set(c.members)
    return out


def nested_cycles(graph: Graph) -> Iterator[Cycle]:
    """Yield all cycles, each ahead of those that are left inside of its loop.

    The first legal dim, in the user's order, becomes a loop; the dependences that it carries are
    dropped, and the rest is searched again.
    """
    edges = [
        (n.name, k)
        for n in graph.nodes.values()
        for k in range(len(n.args))
        if is_feasible(n.domain, merge_condition(n, k))
    ]
    yield from _nested(graph, list(graph.nodes), edges, list(graph.declared))


def _nested(graph: Graph, nodes: list[str], edges: list[Edge], dims: list[str]) -> Iterator[Cycle]:
    for part, within in cycles(graph, nodes, edges):
        tried = ((d, carried(graph, part, within, d)) for d in dims)
        legal = ((d, left) for d, left in tried if left is not None and len(left) < len(within))
        loop, left = next(legal, (None, []))
        yield Cycle(part, within, dims, loop)
        if loop is not None:
            yield from _nested(graph, part, left, [x for x in dims if x != loop])


def cycles(
    graph: Graph, nodes: Sequence[str], edges: Sequence[Edge]
) -> Iterator[tuple[list[str], list[Edge]]]:
    """Yield the equations of each cycle, and the edges between them, sources first."""
    feeds: dict[str, list[str]] = {n: [] for n in nodes}
    for name, k in edges:
        feeds[name].append(graph[name].args[k].name)
    parts = components(nodes, feeds.__getitem__)
    of = {n: part for part, members in enumerate(parts) for n in members}
    within: list[list[Edge]] = [[] for _ in parts]
    for name, k in edges:
        if of[name] == of[graph[name].args[k].name]:
            within[of[name]].append((name, k))
    for members, closing in zip(parts, within, strict=True):
        if closing:
            yield members, closing


def carried(graph: Graph, part: list[str], edges: list[Edge], dim: str) -> list[Edge] | None:
    """The edges that a loop over `dim`, up or down, leaves open; None if no such loop is legal."""
    if not all(dim in graph[n].domain for n in part):
        return None
    lags = [(graph[n].args[k].name, n, edge_lag(graph, n, k, dim)) for n, k in edges]
    found = direction(part, lags)
    if found is None:
        return None
    sign, late = found
    return [
        e
        for e, (source, sink, x) in zip(edges, lags, strict=True)
        if (x if sign > 0 else -x).low == late[source] - late[sink]
    ]


def edge_lag(graph: Graph, name: str, index: int, dim: str) -> Lag:
    """The lag of operand `index` of an equation along a dim that both ends have."""
    node = graph[name]
    a = node.args[index]
    at = graph[a.name].domain.dims.index(dim)
    when = merge_condition(node, index)
    return lag(dim, a.index[at], node.domain, when)


def batch_dims(graph: Graph, sizes: Mapping[str, int]) -> list[str]:
    """Return the dims that impose no order and can be an axis of some equation."""
    ordered = ordered_dims(graph)
    return [d for d in graph.declared if not ordered[d] and with_axis(graph, d, sizes)[1]]


def inside_tiles(graph: Graph) -> list[str]:
    """Return the dims that count the points of a tile, chunk or group: te, where t is tz and te."""
    return [d.name for d in graph.dims if d.role is Role.POINTS]


def unordered_dims(graph: Graph, sizes: Mapping[str, int]) -> list[str]:
    """Return the dims that impose no order, without those of tiles."""
    inside = inside_tiles(graph)
    return [d for d in batch_dims(graph, sizes) if d not in inside and graph.points_of(d) is None]


def batch_last(
    graph: Graph, sizes: Mapping[str, int], dims: Sequence[str], last: bool | None = None
) -> tuple[bool, str]:
    """Decide whether batch axes go last, so that most work is faster, unless `last` is given.

    Returns the decision and its reason.
    """
    if last is not None:
        return last, "asked for"
    nodes = [n for n in graph.nodes.values() if any(d in n.domain for d in dims)]
    layers = [x for n in nodes if (x := _layer(graph, sizes, n, dims)) is not None]
    short = [x for n in nodes if (x := _short_rows(graph, sizes, n, dims)) is not None]
    if not layers and not short:
        return False, ""
    gain = MAX_BATCH_LAST_GAIN * sum(x.work if x.last else -x.work for x in layers)
    gain += sum(x.work for x in short)
    if 0 < gain <= sum(_transpose_ns(graph, sizes, n, dims) for n in nodes):
        return False, "what is given, asked for or taken by its numbers lies in one piece then"
    if sum(x.work for x in short) > sum(x.work for x in layers):
        row = max(short, key=lambda x: x.work)
        return gain > 0, f"most work is on rows of {row.length}, of which there are {row.rows}"
    most = max(layers, key=lambda x: x.work)
    if not most.shared:
        return gain > 0, "most products are of rows with rows, not with weights that rows share"
    return gain > 0, f"most layers are {most.widest} wide, of {most.rows} rows"


def _known_points(node: Node, sizes: Mapping[str, int]) -> dict[str, int]:
    """Count the points along each dim of an equation that has a known number of them."""
    return {r.dim: r.size(sizes) for r in node.domain if not r.mentions() - sizes.keys()}


def _transpose_ns(graph: Graph, sizes: Mapping[str, int], node: Node, dims: Sequence[str]) -> float:
    """Nanoseconds to transpose values that have the batch first: inputs, outputs, samples."""
    op = node.op
    gathers_rows = isinstance(op, Take) and op.labels[0] == op.axis and ",->" in op.labels
    points = _known_points(node, sizes)
    if points.keys().isdisjoint(dims) or not isinstance(node.type, Type) or not node.type.rank:
        return 0.0
    if not (gathers_rows or isinstance(op, Input) or node.name in graph.outputs):
        return 0.0
    price = SCATTERED_ELEMENT_NS if gathers_rows else TURNED_ELEMENT_NS
    return price * prod(points.values()) * prod(node.type.sizes(sizes))


@dataclass(frozen=True)
class _ShortRows:
    """Elementwise work on rows too short for a vector register, of a batch that fills one."""

    length: int
    rows: int
    work: float


def _short_rows(
    graph: Graph, sizes: Mapping[str, int], node: Node, dims: Sequence[str]
) -> _ShortRows | None:
    if not isinstance(node.op, (Elementwise, Reduction)):
        return None
    types = [node.type, *(graph.read_type(a) for a in node.args)]
    shapes = [
        x.sizes(sizes) for x in types if isinstance(x, Type) and not x.mentions() - sizes.keys()
    ]
    shape = max(shapes, key=prod, default=())
    points = _known_points(node, sizes)
    inner = next((d for d in reversed(dims) if d in node.domain), None)
    if inner is None or points.get(inner, 0) < MIN_VECTOR_ROWS:
        return None
    if not shape or shape[-1] >= VECTOR_ELEMENTS:
        return None
    rows = prod(p for d, p in points.items() if d in dims)
    work = compute_ns(graph, node, sizes) * prod(points.values())
    return _ShortRows(shape[-1], rows, work)


@dataclass(frozen=True)
class _Layer:
    """A product over the batch; `shared` if all rows have the same weights."""

    rows: int
    widest: int
    work: float
    shared: bool

    @property
    def last(self) -> bool:
        """Decide whether batch last is faster.

        Time of batch first over that of batch last, measured on one core:

        | rows \\ width | 32 | 64 | 128 | 256 | 512 | 1024 |
        | 32 | 0.85 | 0.81 | | 0.66 | | |
        | 64 | 1.09 | 1.00 | 0.90 | | | |
        | 128 | | 1.12 | 1.05 | 1.00 | 0.88 | |
        | 512 | 1.6 | 1.3 | 1.12 | 1.10 | 1.04 | 0.97 |
        """
        return self.shared and self.widest <= self.rows >= MIN_VECTOR_ROWS


def _layer(
    graph: Graph, sizes: Mapping[str, int], node: Node, dims: Sequence[str]
) -> _Layer | None:
    if node.op.name != "einsum":
        return None
    shapes = [graph.read_type(a).shape for a in node.args]
    widest = max((s for shape in shapes for s in shape if isinstance(s, int)), default=0)
    points = _known_points(node, sizes)
    rows, steps = (
        prod(p for d, p in points.items() if (d in dims) is yes) for yes in (True, False)
    )
    work = compute_ns(graph, node, sizes) * max(rows, MIN_VECTOR_ROWS) * steps
    shared = not all(any(index_symbols(e) & set(dims) for e in a.index) for a in node.args)
    return _Layer(rows, widest, work, shared) if widest else None


def vectorize_by_plan(
    graph: Graph,
    sizes: Mapping[str, int],
    dims: Sequence[str],
    last: bool | None = None,
    why: str = "",
) -> tuple[Graph, tuple[Decision, ...]]:
    """Return the graph with `dims` as axes, the first outermost in memory, and what was decided.

    The axes go last or first (None: decide); `why` is the reason, for remarks.
    """
    if last is None:
        last, why = batch_last(graph, sizes, dims)
    decisions: list[Decision] = []
    for dim in dims if last else reversed(dims):
        cut, members = with_axis(graph, dim, sizes, _guarded(graph, sizes, dim))
        if members and fuel().burn("a dim that orders nothing → an axis", dim):
            graph = vectorize(cut, dim, members, sizes, last)
            decisions.append(Decision(dim, frozenset(members), last, why))
    return graph, tuple(decisions)


def _guarded(graph: Graph, sizes: Mapping[str, int], dim: str) -> set[str]:
    """The equations that a loop over a dim runs at few of its points, and their readers.

    With the dim as an axis they would run at all of them.
    """
    by_data = worthwhile_conditions(graph, sizes, MIN_DECIDED_NS)
    rare = {n for n, found in by_data.items() if any(dim in c.dims for c in found)}
    if not is_even(graph, dim):
        rare |= {n for n, c in guards(graph, sizes).items() if dim in symbols(c)}
    return rare.union(r.name for n in rare for r, _ in graph.readers[n])


def extend_output_axes(
    axes: Sequence[Axes], before: Graph, decisions: tuple[Decision, ...]
) -> list[Axes]:
    """Map the dims of each output of `before` to its axes after `decisions`."""
    out: list[Axes] = []
    for o, (dims, names) in zip(before.outputs, axes, strict=True):
        for d in decisions:
            if o in d.members:
                dims = tuple(x for x in dims if x != d.dim)
                names = (*names, d.dim) if d.last else (d.dim, *names)
        out.append((dims, names))
    return out


def as_axes(
    graph: Graph, cx: CompileContext, batch: Sequence[str], inside: Sequence[str]
) -> FreeDims:
    """Return free dims, with the decision whether their axes go first or last."""
    last, why = batch_last(graph, cx.sizes, [*inside, *batch], cx.tuning.batch_last)
    return FreeDims(tuple(batch), tuple(inside), last, why)


def free_dims(graph: Graph, cx: CompileContext) -> FreeDims:
    """Return the dims that become axes; the first call decides."""
    if cx.free is None:
        batch = unordered_dims(graph, cx.sizes) if cx.tuning.vectorized else []
        cx.free = as_axes(graph, cx, batch, inside_tiles(graph))
    return cx.free


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Make the dims that impose no order axes, and number samples by their place in memory."""
    free = free_dims(graph, cx)
    new, decided = vectorize_by_plan(graph, cx.sizes, free.all, free.last, free.why)
    cx.axes = extend_output_axes(cx.axes, graph, decided)
    cx.remark(*decided)
    return number_by_layout(new)


VECTORIZE = Pass("vectorize", run)
