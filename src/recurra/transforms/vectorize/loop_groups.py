"""The loops of a program, and the cost of running an equation before a loop or behind it.

    for t:  y = einsum(x[t], w)          ahead: y, which reads nothing of the loop
            h = merge(0, f(h[t-1], y))   fixed: h and f, a recurrence
            z = g(h)                     behind: z, which nothing in the loop reads

The equations that leave a loop are one side of a minimum cut: a statement costs something at each
step; a value that crosses the border is written or read at each, and may have to be held for all
points.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod
from typing import cast

from recurra.analysis.data_conditions import worthwhile_conditions
from recurra.analysis.guards import guards
from recurra.cost.model import compute_ns, fuses, keep_ns, step_ns
from recurra.cost.prices import Prices
from recurra.cost.thresholds import (
    MAX_CACHED_BYTES,
    MAX_PEELED_BYTES,
    MEMORY_PRICE,
    MIN_DECIDED_NS,
    MIN_VECTOR_ROWS,
)
from recurra.ir.expr import Sym, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.min_cut import ONE, OTHER, UNBOUNDED, Network
from recurra.ir.types import Type, is_shift
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.elementwise import Going
from recurra.ops.source import Input
from recurra.transforms.compile_context import CompileContext, Phase
from recurra.transforms.strip_mine.tiled_dims import joins
from recurra.transforms.vectorize.plan import free_dims, ordered_dims
from recurra.transforms.vectorize.vectorize import candidates


@dataclass(frozen=True)
class LoopGroup:
    """Loops over `dim`, side by side within the loops over `around`; most often a single one.

    `members` are their equations, in which `batch` dims are axes; `parts` has for each loop its
    equations and those of loops inside. `fixed` ones stay in their loop. `later` ones read
    recurrences of other loops, of which there may be as many points as learning has samples: they
    do not go ahead. A byte that has to be held for the move costs `memory_price` times its traffic.
    """

    graph: Graph
    sizes: Mapping[str, int]
    dim: str
    around: frozenset[str]
    members: frozenset[str]
    parts: tuple[frozenset[str], ...]
    fixed: frozenset[str]
    later: frozenset[str]
    batch: frozenset[str]
    memory_price: float
    prices: Prices

    @cached_property
    def below(self) -> frozenset[str]:
        """All equations of the loops, and of loops in them."""
        return frozenset[str]().union(*self.parts)

    def rows(self, node: Node) -> int:
        """Count the points of an equation at a step of the loop."""
        return node.domain.points(self.sizes, self.batch)

    def steps(self, node: Node) -> int:
        return node.domain[self.dim].size(self.sizes)

    def nbytes(self, node: Node) -> int:
        """The bytes of all points of an equation."""
        return self.rows(node) * self.steps(node) * node.tensor.nbytes(self.sizes)

    def movable(self, dependent: Collection[str]) -> set[str]:
        """The equations that can run at all points at once, without the dependent ones."""
        fixed = {n for n in self.graph.nodes if n in dependent or not self.may_move(n)}
        return candidates(self.graph, self.dim, self.sizes, fixed)

    def may_move(self, name: str) -> bool:
        """Tell whether an equation is pure, and has as many points at every step.

        Random numbers are drawn where they are used: they take much more memory than the result.
        """
        n = self.graph[name]
        if name not in self.members or n.op.drawn:
            return False
        if isinstance(n.op, Merge) and self.dim in n.op.mentions():
            return False
        return is_static(n, self.sizes) and self.nbytes(n) <= MAX_PEELED_BYTES

    def saved_ns(self, node: Node) -> float:
        """Nanoseconds that an equation takes longer if it runs at every step."""
        steps = self.steps(node)
        joined = self.is_joined(node.name)  # by a statement of its own
        stored = self.prices.statement if joined or self.is_held(node) else 0.0
        calls = (steps - 1) * max(stored, step_ns(node, self.prices))
        return self.saved_rows_ns(node) + calls

    def saved_rows_ns(self, node: Node) -> float:
        """Nanoseconds that a product of few rows takes longer at every step, without calls."""
        steps = self.steps(node)
        now = product_rows(self.graph, node, self.sizes, self.dim, self.batch)
        if not 0 < now < MIN_VECTOR_ROWS or steps < 2:
            return 0.0
        more = MIN_VECTOR_ROWS - max(now, MIN_VECTOR_ROWS / steps)
        row = compute_ns(self.graph, node, self.sizes, self.prices) * self.rows(node) / now
        return steps * more * row

    def spilled_ns(self, node: Node) -> float:
        """Nanoseconds to write all points of an equation, and read them, beyond the cache."""
        nbytes = self.nbytes(node)
        if nbytes <= MAX_CACHED_BYTES or self.is_held(node) or fuses(node, self.prices):
            return 0.0
        return self.prices.traffic * nbytes

    def is_box(self, node: Node) -> bool:
        """Tell whether the points of an equation are a box of known lengths."""
        dims = set(node.domain.dims)
        return is_static(node, self.sizes) and not any(r.mentions() & dims for r in node.domain)

    def held_ns(self, name: str) -> float:
        """Nanoseconds to hold all points of an equation, if they are not held anyway."""
        n = self.graph[name]
        if self.dim not in n.domain or self.is_held(n):
            return 0.0
        if not is_static(n, self.sizes) or self.memory_price == inf:
            return UNBOUNDED
        return self.memory_ns(n, self.memory_price) - self.spilled_ns(n)

    def memory_ns(self, node: Node, memory_price: float) -> float:
        """Nanoseconds to store all points; a byte costs `memory_price` times its traffic."""
        points = self.rows(node) * self.steps(node)
        return points * keep_ns(node, self.sizes, memory_price, self.prices)

    def temporary_ns(self, name: str) -> float:
        """Price of all points of an equation in nanoseconds while they are alive."""
        n = self.graph[name]
        return self.memory_ns(n, MEMORY_PRICE) if self.is_joined(name) else self.spilled_ns(n)

    def access_ns(self, name: str) -> float:
        """Nanoseconds to read, or to write, one point of an equation at each step of the loop."""
        return self.steps(self.graph[name]) * self.prices.statement

    def is_held(self, node: Node) -> bool:
        """Tell whether readers outside, or a step of a loop around, need all points stored."""
        return node.name in self.graph.outputs or any(
            self._reads_all(node, r, r.args[k].index)
            for r, k in self.graph.readers[node.name]
            if not joins(self.graph, r, k, self.dim, self.sizes)
        )

    def _reads_all(self, node: Node, reader: Node, index: Sequence[Index]) -> bool:
        """Tell whether a read needs all points of an equation stored for the whole loop."""
        inside = any(node.name in x and reader.name in x for x in self.parts)
        at = node.domain.dims.index(self.dim)
        mine = index[at]
        if isinstance(mine, Slice):  # a window moves with the loop, other ranges do not
            return not (inside and self.dim in symbols(mine.lo) & symbols(mine.hi))
        others = (e for k, e in enumerate(index) if k != at)
        names = (d for d in node.domain.dims if d != self.dim)
        again = any(e != Sym(d) for e, d in zip(others, names, strict=True))
        return self.dim in symbols(mine) and (again or not inside)

    def is_joined(self, name: str) -> bool:
        """Tell whether a reader behind the loop reduces all points, and not as a product."""
        found = () if isinstance(self.graph[name].op, Einsum) else self.graph.readers[name]
        return any(joins(self.graph, r, k, self.dim, self.sizes) for r, k in found)

    def is_read_elsewhere(self, name: str) -> bool:
        """Tell whether another loop reads an equation point by point."""
        at = self.graph[name].domain.dims.index(self.dim)
        found = ((r.name, r.args[k].index[at]) for r, k in self.graph.readers[name])
        by_point = (r for r, e in found if not isinstance(e, Slice) and self.dim in symbols(e))
        return any(r not in self.below for r in by_point)

    def sources(self, name: str) -> Iterable[str]:
        """The equations that an equation reads in the same run of the loop."""
        return {a.name: None for a in self.graph[name].args if self._is_of_this_run(a)}

    def readers(self, name: str) -> Iterable[str]:
        """The equations that read an equation in the same run of the loop."""
        found = ((r, r.args[k]) for r, k in self.graph.readers[name] if r.name in self.below)
        return {r.name: None for r, a in found if self._is_of_this_run(a)}

    def _is_of_this_run(self, ref: Ref) -> bool:
        """Tell whether a value is of the loop, and not of an earlier step of a loop around it."""
        if ref.name not in self.below:
            return False
        pairs = zip(self.graph[ref.name].domain.dims, ref.index, strict=True)
        shifts = (is_shift(e, d) for d, e in pairs if d in self.around and not isinstance(e, Slice))
        return all(c in (0, None) for c in shifts)

    def movable_before(self) -> set[str]:
        """The equations to run ahead, which depend on nothing in the loop: a minimum cut."""
        free = self.movable(_closure(self.fixed | self.later, self.readers))
        network = Network()
        for name in free:  # (name,): it is held for the loop
            n = self.graph[name]
            network.edge(ONE, name, self.saved_ns(n))
            network.edge(name, OTHER, self.temporary_ns(name))
            network.edge(name, (name,), self.held_ns(name) + self.access_ns(name))
            if self.is_read_elsewhere(name):
                network.edge((name,), OTHER)
            for reader in self.readers(name):
                network.edge((name,), reader if reader in free else OTHER)
            for source in self.sources(name):
                network.edge(name, source if source in free else OTHER)
        return free & network.source_side()[0]

    def products_ahead(self) -> set[str]:
        """The equations to run ahead of an ordered loop, if a product of few rows is among them."""
        found = self.movable_before() if self.fixed else set[str]()
        return found if any(self.saved_rows_ns(self.graph[n]) for n in found) else set()

    def movable_after(self) -> set[str]:
        """The equations to run behind, on which nothing in the loop depends: a minimum cut."""
        free = self.movable(_closure(self.fixed, self.sources))
        network = Network()
        for name in free:
            n = self.graph[name]
            network.edge(ONE, name, self.saved_ns(n))
            network.edge(name, OTHER, self.temporary_ns(name))
            network.edge(name, OTHER, self.access_ns(name) if self.is_read_elsewhere(name) else 0.0)
            for reader in self.readers(name):
                network.edge(name, reader if reader in free else OTHER)
            for source in self.sources(name):
                network.edge(name, (source,))
        for source in {x for name in free for x in self.sources(name)}:
            held = self.held_ns(source)
            cost = held + self.access_ns(source) if held else 0.0
            network.edge((source,), source if source in free else OTHER, cost)
        return free & network.source_side()[0]


def _closure(names: Iterable[str], next_of: Callable[[str], Iterable[str]]) -> set[str]:
    """The names, and all that are reached from them."""
    out, todo = {*names}, [*names]
    while todo:
        new = {*next_of(todo.pop())} - out
        out |= new
        todo += new
    return out


def product_rows(
    graph: Graph, node: Node, sizes: Mapping[str, int], dim: str, batch: Collection[str]
) -> int:
    """Count the rows that a step multiplies by one matrix; 0 if no operand stays the same."""
    if not isinstance(node.op, Einsum) or not is_static(node, sizes):
        return 0
    ins, out = node.op.parts()
    fixed = [
        axes
        for axes, a in zip(ins, node.args, strict=True)
        if axes and not _varies(graph, a, {dim, *batch})
    ]
    if not fixed:
        return 0
    size = dict(zip(out, node.type.sizes(sizes), strict=True))  # pyright: ignore
    own = [n for c, n in size.items() if not any(c in axes for axes in fixed)]
    return prod(own) * node.domain.points(sizes, batch)


def is_static(node: Node, sizes: Mapping[str, int]) -> bool:
    """Tell whether the points of an equation are a box of known size, and so are its axes."""
    if not isinstance(node.type, Type):
        return False
    return not (node.type.mentions() | node.domain.mentions()) - sizes.keys()


def _varies(graph: Graph, ref: Ref, dims: Collection[str]) -> bool:
    return any(not index_symbols(e).isdisjoint(dims) for e in ref.index)


def loops_of(graph: Graph, cx: CompileContext, memory_price: float) -> Iterator[LoopGroup]:
    """Yield the loops, with the equations that must stay in them.

    A loop must order these, or they run at few points, have effects, or are in a loop inside. A
    byte that has to be held for a move costs `memory_price` times its traffic.
    """
    axes = frozenset(free_dims(graph, cx).all)
    phases = cx.phases(graph, axes)
    inside: dict[Phase, list[str]] = {}
    for name, phase in phases.items():
        if not isinstance(graph[name].op, Input):
            inside.setdefault(phase[:-1], []).append(name)
    ordered = ordered_dims(graph)
    by_data = worthwhile_conditions(graph, cx.sizes, MIN_DECIDED_NS)
    rare = guards(graph, cx.sizes).keys() | by_data.keys()
    rare |= {r.name for n in rare for r, _ in graph.readers[n]}
    ends = {t for n in graph.nodes.values() if isinstance(n.op, Going) for t in n.op.times}
    beside: dict[tuple[Phase, str], list[LoopGroup]] = {}
    for around, names in inside.items():
        if not around:
            continue
        *outer, (_, dim, _) = cast("tuple[tuple[int, str, int], ...]", around)
        if dim in ends or graph.points_of(dim) is not None:  # tiles, and groups that take turns
            continue
        members = frozenset(names)
        below = frozenset(n for x, y in inside.items() if x[: len(around)] == around for n in y)
        impure = {n for n in below if not graph[n].op.pure}
        fixed = (below & (ordered[dim] | rare | impure)) | (below - members)
        fixed |= members & set(graph.outputs) if fixed else set()  # reported step by step
        prices = cx.target.prices
        dims = frozenset(d for _, d, _ in outer)
        merged = {n for n in ordered[dim] | rare if isinstance(graph[n].op, Merge)}
        later = frozenset(n for n in below if any(a.name in merged for a in graph[n].args))
        loop = LoopGroup(
            graph, cx.sizes, dim, dims, members, (below,), fixed, later, axes, memory_price, prices
        )
        beside.setdefault((around[:-1], dim), []).append(loop)
    for group in beside.values():
        yield from [_joined(group)] if sum(bool(x.fixed) for x in group) <= 1 else group


def _joined(group: Sequence[LoopGroup]) -> LoopGroup:
    """Loops over one dim, side by side, as one."""
    none = frozenset[str]()
    return replace(
        group[0],
        members=none.union(*(x.members for x in group)),
        parts=tuple(x.below for x in group),
        fixed=none.union(*(x.fixed for x in group)),
        later=none.union(*(x.later for x in group)),
    )
