"""Scans: turn a reduction over a range that grows a point per step into one combine per step.

    y[t] = x[0] ∘ .. ∘ x[t]   →   y[t] = x[t] ∘ a·y[t-1], unit at the first point

| monoid | combine with the value before | unit |
| sum, product, maximum, minimum, and, or | x ∘ y | identity of ∘ |
| affine maps, of discounted sums | x + γ·y | 0 |
| outer products, of contractions (`lift_contraction`) | a·b + y | 0 |
| (max, Σ exp), of softmax in tiles (`online`) | max(x, m'), p + exp(m'-m)·y | lowest, 0 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from recurra.ir.expr import Sym, compare
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.op import LETTERS, Op
from recurra.ir.types import Range, is_shift
from recurra.ops.control import Merge
from recurra.ops.elementwise import Add, Mul
from recurra.ops.reduction import Reduction, identity
from recurra.ops.scan import DiscountedSum
from recurra.ops.source import Const
from recurra.transforms.rewriter.rewriting import Rewriting


@dataclass(frozen=True)
class Monoid:
    """`op` combines a point with the value before it, which is `unit` at the first point.

    `act`, if there is one, is applied to the value before: it discounts or rescales it.
    """

    op: str
    unit: float
    act: Callable[[Ref], Ref] | None = None


@dataclass(frozen=True)
class ScanDirection:
    """The range of a dim that a scan runs along, from its first point (+1) or its last (-1)."""

    range: Range
    direction: int


@dataclass(frozen=True)
class RangeFold:
    """A reduction over a range of points that an equation reads, and over axes of a point.

    `axis` numbers the range among those that are read, `range` is its source's, and `rest` are the
    axes of a point. The weight of a point is γ times that of the one before it.
    """

    node: Node
    axis: int
    range: Range
    monoid: Monoid
    gamma: float = 1.0
    rest: tuple[int, ...] = ()

    @property
    def place(self) -> int:
        """The position of the range among the indices."""
        return [k for k, e in enumerate(self.node.args[0].index) if isinstance(e, Slice)][self.axis]

    @property
    def slice(self) -> Slice:
        return self.node.args[0].slices[self.axis]

    def point(self, graph: Rewriting) -> Ref:
        """Return the read of one point of the range, its axes reduced."""
        (a,), node = self.node.args, self.node
        point = a.with_index(self.place, self.range.sym)
        if not self.rest:
            return point
        assert isinstance(node.op, Reduction)
        return graph.emit(replace(node.op, axes=self.rest), (point,), node.domain, node.op.name)


def as_range_fold(node: Node, graph: Rewriting) -> RangeFold | None:
    """Return an equation as a reduction over a range that no other index of the read moves with."""
    axis, gamma, rest, monoid = 0, 1.0, (), "add"
    match node.op:
        case DiscountedSum(axis=axis, gamma=gamma):
            pass
        case Reduction(axes=axes, monoid=str(monoid)) if (
            0 in axes and len(node.args[0].slices) == 1
        ):
            rest = tuple(k - 1 for k in axes if k)
        case _:
            return None
    (a,) = node.args
    places = [k for k, e in enumerate(a.index) if isinstance(e, Slice)]
    if axis >= len(places):
        return None
    r = graph[a.name].domain.ranges[places[axis]]
    unit = identity(monoid, node.tensor.dtype)
    fold = RangeFold(node, axis, r, Monoid(monoid, unit), gamma, rest)
    others = (e for k, e in enumerate(a.index) if k != fold.place)
    moves = any(r.dim in index_symbols(e) for e in others)
    return None if moves or fold.slice.step != 1 or fold.slice.pad is not None else fold


def discounted(node: Node, graph: Rewriting, gamma: float, value: Ref) -> Ref:
    """Emit γ times a value that is of the type of an equation."""
    axes = LETTERS[: node.tensor.rank]
    by = graph.emit(Const(value=gamma, dtype=node.tensor.dtype), (), node.domain, "gamma")
    op = Mul(labels=f",{axes}->{axes}" if axes else "")
    return graph.emit(op, (by, value), node.domain, "discounted")


def scan_step(node: Node, graph: Rewriting, monoid: Monoid, point: Ref, way: ScanDirection) -> Node:
    """Return the equation as one combine of a point with its own value a step before."""
    before = neighbor(node, graph, way, monoid.unit)
    before = before if monoid.act is None else monoid.act(before)
    return replace(node, op=Op.registry[monoid.op](), args=(point, before))


def scan(
    like: Node, name: str, graph: Rewriting, monoid: Monoid, point: Ref, way: ScanDirection
) -> Ref:
    """Emit an equation, over the domain of another, that scans points."""
    n = replace(like, name=name, op=Op.registry[monoid.op](), args=(point, point), locs=())
    graph.put(n)
    graph.put(scan_step(n, graph, monoid, point, way))
    return graph.read(name)


def grows(node: Node, ref: Ref, graph: Rewriting, axis: int) -> tuple[ScanDirection, Ref] | None:
    """Return the direction and the read of the last point if an axis is 0:t+1 or t:T of a dim."""
    places = [k for k, e in enumerate(ref.index) if isinstance(e, Slice)]
    if axis >= len(places):
        return None
    k, s = places[axis], ref.slices[axis]
    r = graph[ref.name].domain.ranges[k]
    if s.step != 1 or s.pad is not None or r.dim not in node.domain:
        return None
    if any(r.dim in index_symbols(e) for j, e in enumerate(ref.index) if j != k):
        return None  # what is read at t-1 is not a part of what is read at t
    mine = node.domain[r.dim]
    point = ref.with_index(k, r.sym)
    if is_shift(s.lo, r.dim) == 0 and s.hi == mine.hi == r.hi:
        return ScanDirection(mine, -1), point
    if is_shift(s.hi, r.dim) == 1 and s.lo == mine.lo == r.lo:
        return ScanDirection(mine, 1), point
    return None


def neighbor(node: Node, graph: Rewriting, way: ScanDirection, unit: float) -> Ref:
    """Emit the value of `node` one step before; `unit` at the first point."""
    r, direction = way.range, way.direction
    start = graph.constant(node, unit, "start")
    edge = r.lo if direction > 0 else r.hi - 1
    when = (compare("==", r.sym, edge), compare(">" if direction > 0 else "<", r.sym, edge))
    args = (start, Ref(node.name, node.domain.point(r.dim, r.sym - direction)))
    name = graph.fresh(node.name + ("_before" if direction > 0 else "_after"))
    graph.put(Node(name, Merge(when=when), args, node.domain, node.type, node.loc))
    return graph.read(name)


@dataclass(frozen=True)
class Running:
    """A scan of sums: s = point + before, before 0 at the first point and then s a step before.

    `begin` is s before the chunk, once `split_sums` has added it.
    """

    name: str
    before: str
    zero: Ref
    point: Ref
    begin: str = ""


def running_sums(graph: Graph, dim: str) -> list[Running]:
    """Return the sums that are scanned along a dim from its first point."""
    return [s for n in graph.nodes.values() if (s := _running(graph, n, dim)) is not None]


def _running(graph: Graph, node: Node, dim: str) -> Running | None:
    if not isinstance(node.op, Add) or dim not in node.domain or node.op.labels:
        return None
    back = Ref(node.name, node.domain.point(dim, Sym(dim) - 1))
    first = compare("==", Sym(dim), node.domain[dim].lo)
    for k, a in enumerate(node.args):
        m, point = graph[a.name], node.args[1 - k]
        if not isinstance(m.op, Merge) or len(m.args) != 2 or not graph.is_identity(a):
            continue
        zero, mine = m.args
        start = graph[zero.name].op
        is_zero = isinstance(start, Const) and start.value == 0
        if is_zero and m.op.when[0] == first and mine == back and graph.is_identity(point):
            return Running(node.name, m.name, zero, point)
    return None
