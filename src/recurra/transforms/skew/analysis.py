"""Find tables whose cells depend on neighbors along two dims, and the cost of their diagonals.

d[i<I,j<J] reads d[i-1,j], d[i,j-1]      i + j orders it: every read is of a smaller sum
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from recurra.cost.model import compute_ns
from recurra.cost.prices import PRICES, Prices
from recurra.ir.expr import Expr, lin, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.op import Elementwise, Op
from recurra.ir.types import Range, Type, is_shift
from recurra.ops.control import Merge
from recurra.ops.movement import Reshape
from recurra.ops.random import Uniform
from recurra.ops.source import Value
from recurra.polyhedral.boxes import hull
from recurra.transforms.vectorize.plan import Edge, batch_dims, carried, cycles, nested_cycles


@dataclass(frozen=True)
class Front:
    """Equations `cells` over `axis` and `other`, whose diagonals become steps of a loop.

    sign    +1: cells read smaller diagonals, -1: larger ones
    far     the number of diagonals back to the farthest read
    pulled  equations that cells read at their own point, recomputed on the diagonals
    only    true if there is no other order
    """

    axis: Range
    other: Range
    sign: int
    far: int
    cells: tuple[str, ...]
    pulled: tuple[str, ...]
    only: bool

    @property
    def members(self) -> frozenset[str]:
        return frozenset((*self.cells, *self.pulled))

    @property
    def length(self) -> Expr | int:
        """The number of elements of a diagonal."""
        return length_of(self.axis)

    @property
    def before(self) -> int:
        """The number of steps before the first diagonal, on which the state is zero."""
        return self.far if self.sign > 0 else 0

    def __str__(self) -> str:
        cells = f"{len(self.cells)} equations"
        return f"{self.axis.dim}, {self.other.dim}: diagonals of {self.length} cells for {cells}"


def costs(
    graph: Graph, front: Front, sizes: Mapping[str, int], prices: Prices = PRICES
) -> tuple[float, float]:
    """Return the nanoseconds of one table, cell by cell and diagonal by diagonal.

    On a diagonal every branch is computed for all cells, and operands are moved first.
    """
    batch = set(batch_dims(graph, sizes))
    p, q = front.axis.size(sizes), front.other.size(sizes)
    by_cell = by_diagonal = 0.0
    for n in map(graph.__getitem__, front.members):
        rows, work = n.domain.points(sizes, batch), compute_ns(graph, n, sizes, prices)
        moves = sum(a.name not in front.members or a.index != n.domain.identity for a in n.args)
        branches = len(n.args) * isinstance(n.op, Merge)
        calls = 1 + 2 * moves + 3 * branches  # cut and pad; two comparisons and a select
        more = moves * prices.plain + branches * prices.of("where")
        by_cell += prices.statement + rows * work
        by_diagonal += prices.statement * calls + p * rows * (work + more)
    return p * q * by_cell, (p + q - 1) * by_diagonal


def fronts(graph: Graph, sizes: Mapping[str, int]) -> Iterator[Front]:
    """Yield the cycles that neither of two dims orders alone, but their sum does."""
    found = set[str]()
    for c in nested_cycles(graph) if moves_along_two(graph) else ():
        if not found.issuperset(c.members):  # a cycle inside of a front is on its diagonals
            tried = (_front(graph, sizes, c.members, c.edges, *x) for x in permutations(c.dims, 2))
            f = next((f for f in tried if f is not None), None)
            if f is not None:
                found |= set(c.members)
                yield f


def moves_along_two(graph: Graph) -> bool:
    """Tell whether equations that share two dims read each other at shifted points along either.

    Where all shifts are along one of two dims, a loop over that dim leaves the other free.
    """
    found = set[tuple[str, str]]()
    for n in graph.nodes.values():
        for a in n.args:
            source = graph[a.name].domain
            if a.index == n.domain.identity or len(source) < 2:
                continue
            both = [r.dim for r in source if r.dim in n.domain]
            moved = [
                r.dim
                for e, r in zip(a.index, source, strict=True)
                if r.dim in both and not isinstance(e, Slice) and is_shift(e, r.dim)
            ]
            found |= {(d, other) for d in moved for other in both if other != d}
    return any((other, d) in found for d, other in found)


def _front(
    graph: Graph,
    sizes: Mapping[str, int],
    part: list[str],
    within: list[Edge],
    axis: str,
    other: str,
) -> Front | None:
    """A cycle as a front, in which the shorter dim is the axis."""
    if not all({axis, other} <= set(graph[n].domain.dims) for n in part):
        return None
    shifts = [shifts_of(graph, graph[n].args[k], axis, other) for n, k in within]
    sums = [s[0] + s[1] for s in shifts if s is not None and s != (0, 0)]
    if None in shifts or not sums or not (max(sums) < 0 or min(sums) > 0):
        return None
    alone = [carried(graph, part, within, d) for d in (axis, other)]
    if any(left is not None and not any(cycles(graph, part, left)) for left in alone):
        return None  # in a loop over one dim, the other is free
    pulled = _pulled(graph, sizes, part, axis, other)
    ranges = [hull([graph[n].domain[d] for n in part], sizes) for d in (axis, other)]
    if None in ranges or not all(_diagonal(graph, sizes, n, axis, other) for n in (*part, *pulled)):
        return None
    mine, theirs = (r for r in ranges if r is not None)
    short = mine.size(sizes) <= theirs.size(sizes)
    if not short or mine.size(sizes) < 1:
        return None
    sign, far = (1 if max(sums) < 0 else -1), max(map(abs, sums))
    only = all(left is None for left in alone)
    return Front(mine, theirs, sign, far, tuple(part), tuple(pulled), only)


def shifts_of(graph: Graph, ref: Ref, axis: str, other: str) -> tuple[int, int] | None:
    """Return the shifts of a read along both dims; None if it is no shift, or of another row."""
    out: dict[str, int] = {}
    for e, r in zip(ref.index, graph[ref.name].domain, strict=True):
        c = None if isinstance(e, Slice) else is_shift(e, r.dim)
        if c is None or (c and r.dim not in (axis, other)):
            return None
        out[r.dim] = c
    return out[axis], out[other]


def _pulled(
    graph: Graph, sizes: Mapping[str, int], part: Sequence[str], axis: str, other: str
) -> list[str]:
    """The equations that cells read at their own point, if they can run on the diagonal."""
    out: list[str] = []
    todo = list(part)
    while todo:
        for a in graph[todo.pop()].args:
            n = graph[a.name]
            if (
                a.name not in (*part, *out)
                and {axis, other} <= set(n.domain.dims)
                and a.index == n.domain.identity
                and isinstance(n.op, (Elementwise, Merge, Value, Uniform))
                and _diagonal(graph, sizes, a.name, axis, other)
            ):
                out.append(a.name)
                todo.append(a.name)
    return out


def _diagonal(graph: Graph, sizes: Mapping[str, int], name: str, axis: str, other: str) -> bool:
    """Tell whether an equation can run for all cells of a diagonal at once."""
    n, two = graph[name], {axis, other}
    if not _can_batch(graph, n) or not isinstance(n.type, Type) or n.type.mentions() & two:
        return False
    if isinstance(n.op, Merge):  # along the diagonal, all branches are computed
        free = [symbols(c) & {r.dim for r in n.domain} for c in n.op.when]
        if any(x & two for x in free) and any(x - two for x in free):
            return False
    elif n.op.mentions() & two and not isinstance(n.op, (Value, Uniform)):
        return False
    return all(_readable(a, graph[a.name], two, sizes) for a in n.args)


def _can_batch(graph: Graph, node: Node) -> bool:
    """Tell whether an operator can have one more axis."""
    if isinstance(node.op, (Merge, Value, Uniform, Reshape)):
        return True
    if type(node.op).batch is Op.batch:  # it has no rule for one more axis
        return False
    ranks = tuple(len(graph.read_type(a).shape) for a in node.args)
    return node.op.pure and node.op.batch((True,) * len(ranks), ranks, False) is not None


def _readable(ref: Ref, source: Node, two: set[str], sizes: Mapping[str, int]) -> bool:
    """Tell whether a read is the same for all cells, or of a point for each."""
    pairs = [
        (e, r) for e, r in zip(ref.index, source.domain, strict=True) if index_symbols(e) & two
    ]
    if not pairs:
        return True
    fixed = all(not (symbols(r.lo) | symbols(r.hi)) - set(sizes) for _, r in pairs)
    return not ref.slices and fixed


def length_of(extent: Range) -> Expr | int:
    return lin([(extent.hi, 1), (extent.lo, -1)])
