"""The storage plan: where every read finds its value.

A value stays a variable if its readers want the one computed last: in the same step, one step later
if the reader comes first, or after the loop if it reads the last one. All other values go through
a store, whose length in each dim is the longest time from a write to a read of the same point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from recurra.ir.dims import Role
from recurra.ir.expr import (
    Expr,
    Sym,
    compare,
    evaluate,
    fixed_value,
    lin,
    negate,
    substitute,
    symbols,
)
from recurra.ir.graph import Graph, Slice
from recurra.ir.statement import Statement, StatementGraph
from recurra.ir.types import Domain, Range, Tuple
from recurra.ops.control import Merge
from recurra.ops.elementwise import Going
from recurra.ops.source import Input
from recurra.polyhedral import isl
from recurra.polyhedral.dependence_distance import Lag
from recurra.polyhedral.extent import at_sizes, longest, varies
from recurra.polyhedral.strides import stride
from recurra.report.html import table_html
from recurra.schedule.dependences import Dependence, dependences
from recurra.schedule.legality import lag_in_loop
from recurra.schedule.tree import TOP, Loop, Schedule, common_loops
from recurra.storage.store import Home, Store, StoredAxis
from recurra.storage.tiled_layout import in_mirrored_window, in_tiles

if TYPE_CHECKING:
    from recurra.storage.arena import Arena

# The variable of this step, of the step before, or of a loop's last step; or a store.
AccessKind = Literal["now", "before", "last", "store"]


@dataclass(frozen=True)
class StoragePlan:
    """Accesses by statement and operand, stores, and the variables that loops carry, by loop id."""

    schedule: Schedule
    sizes: Mapping[str, int]
    accesses: Mapping[tuple[str, int], AccessKind]
    stores: Mapping[str, Store]
    carried: Mapping[int, frozenset[str]]  # by loop: variables
    starts: Mapping[int, tuple[str, ...]]  # by loop, or TOP: folds that restart in its body
    initial_values: Mapping[
        int, tuple[tuple[str, str], ...]
    ]  # by loop: (variable, its initial value)
    initial_merges: frozenset[
        str
    ]  # merges that such a variable replaces: no branch is chosen at run time
    homes: Mapping[str, Home] = field(default_factory=dict[str, Home])  # places in other stores
    arena: Arena | None = None  # the one block of memory that holds the stores

    @property
    def graph(self) -> Graph:
        return self.schedule.graph

    @property
    def statements(self) -> StatementGraph:
        return self.schedule.statements

    def store_of(self, array: str) -> str:
        """The array whose store holds an array: itself, or its home."""
        return self.homes[array].store if array in self.homes else array

    def written(self, statement: str) -> str:
        """The store that a statement writes, if its array has one."""
        return self.store_of(self.statements[statement].array)

    def access(self, statement: str, index: int) -> AccessKind:
        """The access to operand `index` of a statement."""
        return self.accesses[statement, index]

    @cached_property
    def loops_around(self) -> dict[str, tuple[int, ...]]:
        """The ids of the loops around each statement."""
        paths = self.schedule.paths()
        return {s: tuple(x.id for _, x in p if x is not None) for s, p in paths.items()}

    def open(self, node: Statement, active: frozenset[str]) -> list[int]:
        """The operands of a merge that may be chosen while only the statements `active` run: an
        operand of the same step that does not run belongs to a branch that is not taken."""
        return [
            k
            for k, a in enumerate(node.args)
            if self.access(node.name, k) != "now"
            or self.loops_around[a.name] != self.loops_around[node.name]
            or not self.loops_around[node.name]
            or a.name in active
        ]

    def __str__(self) -> str:
        rows = [f"{s}  {s.nbytes(self.sizes):,} B" for s in self.stores.values()]
        total = sum(s.nbytes(self.sizes) for s in self.stores.values())
        rows += [f"{n}: in {h.store}, {h.size} points each" for n, h in self.homes.items()]
        rows += [f"total {total:,} B"] + ([str(self.arena)] if self.arena else [])
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        rows: list[dict[str, Any]] = [
            {
                "store": s.name,
                "points": ", ".join(map(str, s.kept)) or "one",
                "of": str(s.type),
                "bytes": s.nbytes(self.sizes),
            }
            for s in self.stores.values()
        ]
        return table_html(rows, {"store": "total", "bytes": sum(r["bytes"] for r in rows)})


def make_plan(schedule: Schedule, sizes: Mapping[str, int]) -> StoragePlan:
    """Plan the storage of a schedule; lengths of stores follow from the lags of its reads."""
    planner = _Planner(schedule, sizes)
    for r in dependences(schedule.statements):
        planner.place(r)
    inputs = (s.array for s in schedule.statements.statements.values() if isinstance(s.op, Input))
    for name in (*schedule.graph.outputs, *inputs):
        planner.keep_all(name)
    planner.seed()
    return StoragePlan(
        schedule,
        dict(sizes),
        planner.accesses,
        {n: planner.store(n) for n in schedule.graph.nodes if n in planner.slots},
        {k: frozenset(v) for k, v in planner.carried.items()},
        {k: tuple(v) for k, v in planner.starts.items()},
        {k: tuple(v) for k, v in planner.initial_values.items()},
        frozenset(planner.initial_merges),
    )


@dataclass
class _Planner:
    schedule: Schedule
    sizes: Mapping[str, int]
    accesses: dict[tuple[str, int], AccessKind] = field(default_factory=dict)
    slots: dict[str, dict[str, int]] = field(default_factory=dict)  # by array and dim
    read_ends: dict[tuple[str, str], int] = field(default_factory=dict)  # of padded reads
    carried: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    starts: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    initial_values: defaultdict[int, list[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    initial_merges: set[str] = field(default_factory=set)
    store_reads: defaultdict[str, list[Dependence]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        self.graph = self.schedule.statements
        self.paths = self.schedule.paths()
        self.ends_by_data = any(isinstance(s.op, Going) for s in self.graph.statements.values())

    def common_loops(self, one: str, other: str) -> list[Loop]:
        return common_loops(self.paths[one], self.paths[other])

    def place(self, dependence: Dependence) -> None:
        """Decide the access of one read."""
        source, key = dependence.source, (dependence.sink, dependence.k)
        common = self.common_loops(source, dependence.sink)
        inner = [x for _, x in self.paths[source][len(common) :] if x is not None]
        if self.graph[source].accumulates:  # the running sum travels through the inner loops
            self.starts[common[-1].id if common else TOP].append(source)
            self.carry(source, inner)
            self.accesses[key] = "now"
            return
        if dependence.ref.name not in self.graph.whole:
            self.store_reads[dependence.ref.name].append(dependence)
            self.keep_all(dependence.ref.name)
            self.overrun(dependence)
            self.accesses[key] = "store"
            return
        lags = [lag_in_loop(self.graph, dependence, x) for x in common]
        access = self.accesses[key] = self.access(dependence, common, inner, lags)
        if access == "store":
            self.lengthen(dependence, common, inner, lags)
            return
        self.carry(source, inner)
        if access == "before":
            self.carry(source, common[_first_lag(lags) :])

    def carry(self, name: str, loops: list[Loop]) -> None:
        for loop in loops:
            self.carried[loop.id].add(name)

    def access(
        self, dependence: Dependence, common: list[Loop], inner: list[Loop], lags: list[Lag]
    ) -> AccessKind:
        """Choose a variable where it holds the point that is read, else a store."""
        source, sink = dependence.source, dependence.sink
        if (
            dependence.ref.slices
            or (isinstance(self.graph[source].type, Tuple) and inner)
            or self.is_given_to_a_loop(dependence)
            or not all(self.is_last(dependence, x) for x in inner)
        ):
            return "store"
        depth, lagging = len(common), _first_lag(lags)
        if lagging == depth:
            return "last" if inner else "now"
        within = common[lagging + 1 :]
        first = self.paths[sink][depth][0] <= self.paths[source][depth][0] or any(
            self.begins(source, x) > self.begins(sink, x) for x in within
        )
        restarts = all(self.restarts_at_last(dependence, x) for x in within)
        return "before" if lags[lagging].exact == 1 and first and restarts else "store"

    def is_given_to_a_loop(self, dependence: Dependence) -> bool:
        """Tell whether a loop reads an input of one point: a variable would be a second copy.

        A state whose initial value is the input needs that copy.
        """
        source, sink = self.graph[dependence.source], self.graph[dependence.sink]
        in_a_loop = len(self.paths[dependence.sink]) > 1 and not isinstance(sink.op, Merge)
        return isinstance(source.op, Input) and not source.domain and in_a_loop

    def restarts_at_last(self, dependence: Dependence, loop: Loop) -> bool:
        """Tell whether a read at a loop's first step takes the last value of its previous run."""
        d = self.graph[dependence.sink].domain[loop.dim]
        start = d.lo if loop.step > 0 else d.hi - 1
        at = d.lo if d.is_point else fixed_value(dependence.where, loop.dim)
        known = at is not None and not (symbols(at) | symbols(start)) - self.sizes.keys()
        if not known or evaluate(at, self.sizes) != evaluate(start, self.sizes):
            return False
        return self.is_last(dependence, loop) and self.begins(
            dependence.source, loop
        ) >= self.begins(dependence.sink, loop)

    def is_last(self, dependence: Dependence, loop: Loop) -> bool:
        """Tell whether the point read is the one that `loop` computes last."""
        domain = self.graph[dependence.source].domain
        e = dependence.index[domain.dims.index(loop.dim)]
        if isinstance(e, Slice):
            return False
        d = domain[loop.dim]
        if varies(d, self.sizes):  # tj < t//8+1, read at t//8 of its own t
            by = dict(zip(domain.dims, dependence.index, strict=True))
            own = all(by[x] == Sym(x) for x in d.mentions() if x in by)
            return own and loop.step > 0 and lin([(d.hi, 1), (e, -1)]) == 1
        if symbols(e) - self.sizes.keys():
            return False
        end = evaluate(d.hi, self.sizes) - 1 if loop.step > 0 else evaluate(d.lo, self.sizes)
        return evaluate(e, self.sizes) == end

    def lengthen(
        self, dependence: Dependence, common: list[Loop], inner: list[Loop], lags: list[Lag]
    ) -> None:
        """Lengthen the store of the source so that this read finds its point."""
        source, lagging = dependence.source, _first_lag(lags)
        self.store_reads[source].append(dependence)
        slots = self.slots.setdefault(source, {})
        if lagging < len(common):
            loop = common[lagging]
            need = self.live_points(dependence, loop, lags[lagging])
            slots[loop.dim] = max(slots.get(loop.dim, 1), need)
        for loop in common[lagging + 1 :]:  # inside a loop with a lag, every point must be there
            slots[loop.dim] = self.extent(source, loop.dim)
        for loop in inner:
            slots[loop.dim] = max(slots.get(loop.dim, 1), self.points_left(dependence, loop))
        self.overrun(dependence)

    def live_points(self, dependence: Dependence, loop: Loop, lag: Lag) -> int:
        """Count the points of a loop that wait for a read at the same time."""
        full = self.extent(dependence.source, loop.dim)
        if lag.high is not None:
            return min(full, lag.high + 1)
        high = lag_in_loop(self.graph, dependence, loop, self.sizes).high
        # a range that wraps around the end of a window is copied, or kept twice
        return full if high is None or 2 * (high + 1) > full else high + 1

    def points_left(self, dependence: Dependence, loop: Loop) -> int:
        """Count the last points of a loop that are read after it."""
        domain, sink = self.graph[dependence.source].domain, self.graph[dependence.sink]
        full, d = self.extent(dependence.source, loop.dim), domain[loop.dim]
        going = (s.op for s in self.graph.statements.values() if isinstance(s.op, Going))
        times = {t for op in going for t in op.times}
        tiles = (r.name for t in times for r in self.graph.children(t, Role.TILES))
        if loop.dim in times.union(tiles) or varies(d, self.sizes) or sink.accumulates:
            return full
        e = dependence.index[domain.dims.index(loop.dim)]
        first, end = (e.lo, e.hi) if isinstance(e, Slice) else (e, lin([(e, 1), (1, 1)]))
        back = lin([(d.hi, 1), (first, -1)]) if loop.step > 0 else lin([(end, 1), (d.lo, -1)])
        most = isl.largest(substitute(back, self.sizes), at_sizes(sink.domain, self.sizes))
        return max(1, min(full, most)) if isinstance(most, int) else full

    def seed(self) -> None:
        """Make the merge of `merge(x0, x[t-1])` the carried variable x, which starts as x0."""
        initial: dict[tuple[int, str], dict[str, str | None]] = {}
        before = {key for key, access in self.accesses.items() if access == "before"}
        for r in dependences(self.graph):
            if (r.sink, r.k) in before:
                loop = self.common_loops(r.source, r.sink)[-1]
                initial.setdefault((loop.id, r.source), {})[r.sink] = self.first_value(r, loop)
        for (loop_id, source), values in initial.items():
            first, *others = set(values.values())
            if first is not None and not others:
                self.initial_values[loop_id].append((source, first))
                self.initial_merges |= set(values)

    def first_value(self, dependence: Dependence, loop: Loop) -> str | None:
        """The array that a merge reads at a loop's first step, if at all later steps it reads the
        step before; else None."""
        node = self.graph[dependence.sink]
        when: tuple[Expr, ...] = getattr(node.op, "when", ())
        if (
            len(when) != 2
            or dependence.k != 1
            or symbols(when[0]) - self.sizes.keys() != frozenset((loop.dim,))
        ):
            return None
        init = node.args[0].name
        in_loop = loop in self.common_loops(init, dependence.sink)
        if in_loop or self.accesses[dependence.sink, 0] not in ("now", "last"):
            return None
        d = node.domain[loop.dim]
        if varies(d, self.sizes):
            if loop.step < 0 or d.lo != 0 or not isl.always(compare("<", 0, d.hi), node.domain):
                return None
            lo, hi = 0, self.extent(dependence.sink, loop.dim)
        else:
            lo, hi = evaluate(d.lo, self.sizes), evaluate(d.hi, self.sizes)
        first = lo if loop.step > 0 else hi - 1
        rest = Range(loop.dim, hi, lo + 1) if loop.step > 0 else Range(loop.dim, hi - 1, lo)
        if lo >= hi or not evaluate(when[0], {**self.sizes, loop.dim: first}):
            return None
        later = negate(substitute(when[0], self.sizes))
        begins_later = self.begins(dependence.source, loop) >= self.begins(dependence.sink, loop)
        return init if begins_later and isl.always(later, Domain((rest,))) else None

    def begins(self, statement: str, loop: Loop) -> int:
        """The first time at which a statement runs in a loop."""
        d = self.graph[statement].domain[loop.dim]  # the other end may vary
        at = evaluate(d.lo, self.sizes) if loop.step > 0 else 1 - evaluate(d.hi, self.sizes)
        return at + loop.shift[statement]

    def overrun(self, dependence: Dependence) -> None:
        """Record how far a padded read runs past the end of a store, which then has room for it."""
        name = dependence.ref.name
        for s, d in zip(dependence.ref.index, self.graph.arrays[name].domain, strict=True):
            if not isinstance(s, Slice) or s.pad is None:
                continue
            box = at_sizes(self.graph[dependence.sink].domain, self.sizes)
            top = isl.largest(substitute(s.lo, self.sizes), box) if len(box) else None
            if not isinstance(top, int):
                top = d.size(self.sizes) - 1
            end = top + evaluate(s.pad, self.sizes) * s.step
            self.read_ends[name, d.dim] = max(self.read_ends.get((name, d.dim), 0), end)

    def extent(self, name: str, dim: str) -> int:
        return longest(self.graph.arrays[name].domain, dim, self.sizes)

    def keep_all(self, name: str) -> None:
        """Give an array a store of all its points."""
        self.slots[name] = {d: self.extent(name, d) for d in self.graph.arrays[name].domain.dims}

    def store(self, name: str) -> Store:
        node = self.graph.arrays[name]
        assert not isinstance(node.type, Tuple)
        axes: list[StoredAxis] = []
        for dim in self.order(name):
            n, full = self.slots[name].get(dim, 1), self.extent(name, dim)
            lo = evaluate(node.domain[dim].lo, self.sizes)
            strided = self.strided(name, dim, n)
            if strided is not None:
                axes.append(strided)
            elif n >= full and (full > 1 or dim in self.slots[name]):
                room = max(full, self.read_ends.get((name, dim), 0) - lo)
                axes.append(StoredAxis(dim, "full", room, lo, node.domain[dim].hi))
            elif n > 1:
                axes.append(StoredAxis(dim, "circular", n, lo))
            else:
                axes.append(StoredAxis(dim, "scalar", 1))
        output, given = name in self.graph.outputs, self.is_input(name)
        store = Store(name, tuple(axes), node.type, output, given)
        if output or given:
            return store
        ranges = [r for r in self.store_reads[name] if r.ref.slices]
        store = in_tiles(store, self.graph, ranges, self.sizes)
        return in_mirrored_window(store, self.graph, ranges, self.sizes)

    def is_input(self, name: str) -> bool:
        return any(isinstance(w.op, Input) for w in self.graph.writers[name])

    def strided(self, name: str, dim: str, slots: int) -> StoredAxis | None:
        """An axis of only the points that are read, if these lie a stride apart."""
        domain = self.graph.arrays[name].domain
        every = name in self.graph.outputs or self.is_input(name)
        if every or varies(domain[dim], self.sizes) or self.ends_by_data:
            return None
        at = domain.dims.index(dim)
        reads = [(r.index[at], self.graph[r.sink].domain) for r in self.store_reads[name]]
        found = stride(reads, self.sizes)
        if found is None:
            return None
        lo, hi = (evaluate(e, self.sizes) for e in (domain[dim].lo, domain[dim].hi))
        first = found.first(lo)
        end = max(hi + found.step - 1, self.read_ends.get((name, dim), 0))
        kept = 1 + (end - first) // found.step
        if kept >= slots:
            return None
        return StoredAxis(dim, "strided", kept, first, domain[dim].hi, step=found.step)

    def order(self, name: str) -> list[str]:
        """The dims of an array in the order of the loops around its writers, outermost first."""
        paths = [self.paths[w.name] for w in self.graph.writers[name]]
        loops = [x.dim for path in paths for _, x in path if x is not None]
        return [d for d in dict.fromkeys((*loops, *self.graph.arrays[name].domain.dims))]


def _first_lag(lags: list[Lag]) -> int:
    """The position of the outermost loop with a lag; past the end if there is none."""
    return next((k for k, x in enumerate(lags) if x.exact != 0), len(lags))
