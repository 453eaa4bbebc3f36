"""The storage plan: where every read finds its value.

A value stays a variable as long as the latest one computed is the one that is wanted: in the same
step, one step later if the reader comes first, or after the loop if the last one is read. All
else goes through a store, whose length in each dim is the longest time that a point is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from recurra.ir.dims import Role
from recurra.ir.expr import Expr, Sym, compare, evaluate, lin, negate, pinned, substitute, symbols
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
from recurra.schedule.legality import waited
from recurra.schedule.tree import TOP, Loop, Schedule
from recurra.storage.store import Home, Store, StoredAxis
from recurra.storage.tiled_layout import in_a_ring, in_tiles

if TYPE_CHECKING:
    from recurra.storage.arena import Arena

How = Literal["now", "before", "last", "store"]
Path = tuple[tuple[int, Loop | None], ...]


@dataclass(frozen=True)
class Access:
    """The place of operand `k` of `sink`: this step, the one before, a loop's last, a store."""

    sink: str
    k: int
    how: How


@dataclass(frozen=True)
class StoragePlan:
    """Accesses, stores, and for each loop, by its id, the variables that go from step to step."""

    schedule: Schedule
    sizes: Mapping[str, int]
    accesses: Mapping[tuple[str, int], Access]
    stores: Mapping[str, Store]
    carried: Mapping[int, frozenset[str]]  # by loop: variables
    starts: Mapping[int, tuple[str, ...]]  # by loop, or TOP: folds that start anew in its body
    seeds: Mapping[int, tuple[tuple[str, str], ...]]  # by loop: (variable, value before its steps)
    seeded: frozenset[str]  # merges that are such a variable: no choice is left at run time
    homes: Mapping[str, Home] = field(default_factory=dict[str, Home])  # in stores of others
    arena: Arena | None = None  # one block of memory in which stores lie

    @property
    def graph(self) -> Graph:
        return self.schedule.graph

    @property
    def statements(self) -> StatementGraph:
        return self.schedule.statements

    def store_of(self, array: str) -> str:
        """The array in whose store an array is kept: itself, or its home."""
        return self.homes[array].store if array in self.homes else array

    def written(self, statement: str) -> str:
        """The store that a statement writes, if its array is kept."""
        return self.store_of(self.statements[statement].array)

    def access(self, statement: str, index: int) -> How:
        """The way in which operand `index` of a statement is found."""
        return self.accesses[statement, index].how

    @cached_property
    def around(self) -> dict[str, tuple[int, ...]]:
        """The ids of the loops around each statement."""
        paths = self.schedule.paths()
        return {s: tuple(x.id for _, x in p if x is not None) for s, p in paths.items()}

    def open(self, node: Statement, active: frozenset[str]) -> list[int]:
        """The operands of a merge that may be chosen while just `active` runs: an operand of the
        same step that does not run then belongs to a branch that is not taken."""
        return [
            k
            for k, a in enumerate(node.args)
            if self.accesses[node.name, k].how != "now"
            or self.around[a.name] != self.around[node.name]
            or not self.around[node.name]
            or a.name in active
        ]

    def __str__(self) -> str:
        rows = [f"{s}  {s.nbytes(self.sizes):,} B" for s in self.stores.values()]
        total = sum(s.nbytes(self.sizes) for s in self.stores.values())
        rows += [f"{n}: in {h.store}, {h.size} points each" for n, h in self.homes.items()]
        rows += [f"total {total:,} B"] + ([str(self.arena)] if self.arena else [])
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        rows: list[dict[str, Any]] = []
        for s in self.stores.values():
            kept = ", ".join(map(str, s.kept)) or "one"
            size = s.nbytes(self.sizes)
            rows.append({"store": s.name, "points": kept, "of": str(s.type), "bytes": size})
        return table_html(rows, {"store": "total", "bytes": sum(r["bytes"] for r in rows)})


def plan(schedule: Schedule, sizes: Mapping[str, int]) -> StoragePlan:
    """The memory plan of a schedule; lengths follow from the lags of its reads."""
    work = _Planner(schedule, sizes)
    for r in dependences(schedule.statements):
        work.place(r)
    for o in schedule.graph.outputs:
        work.keep_all(o)
    for s in schedule.statements.statements.values():
        if isinstance(s.op, Input):
            work.keep_all(s.array)
    work.seed()
    return StoragePlan(
        schedule,
        dict(sizes),
        work.accesses,
        {n: work.store(n) for n in schedule.graph.nodes if n in work.slots},
        {k: frozenset(v) for k, v in work.carried.items()},
        {k: tuple(v) for k, v in work.starts.items()},
        {k: tuple(v) for k, v in work.seeds.items()},
        frozenset(work.seeded),
    )


@dataclass
class _Planner:
    schedule: Schedule
    sizes: Mapping[str, int]
    accesses: dict[tuple[str, int], Access] = field(default_factory=dict)
    slots: dict[str, dict[str, int]] = field(default_factory=dict)
    reach: dict[tuple[str, str], int] = field(default_factory=dict)
    carried: dict[int, set[str]] = field(default_factory=dict)
    starts: dict[int, list[str]] = field(default_factory=dict)
    seeds: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    seeded: set[str] = field(default_factory=set)
    asked: dict[str, list[Dependence]] = field(default_factory=dict)  # through the store

    def __post_init__(self) -> None:
        self.graph = self.schedule.statements
        self.paths = self.schedule.paths()

    def shared(self, one: str, other: str) -> list[Loop]:
        """The loops that run around both statements."""
        out: list[Loop] = []
        for (ka, la), (kb, lb) in zip(self.paths[one], self.paths[other], strict=False):
            if ka != kb or la is None or lb is None:
                break
            out.append(la)
        return out

    def place(self, dependence: Dependence) -> None:
        common = self.shared(dependence.source, dependence.sink)
        inner = [x for _, x in self.paths[dependence.source][len(common) :] if x is not None]
        if (
            dependence.ref.name not in self.graph.whole
            and not self.graph[dependence.source].accumulates
        ):
            self.asked.setdefault(dependence.ref.name, []).append(dependence)
            self.keep_all(dependence.ref.name)
            self.overrun(dependence)
            self.accesses[dependence.sink, dependence.k] = Access(
                dependence.sink, dependence.k, "store"
            )
            return
        if self.graph[
            dependence.source
        ].accumulates:  # the running sum travels through the inner loops
            self.starts.setdefault(common[-1].id if common else TOP, []).append(dependence.source)
            for x in inner:
                self.carried.setdefault(x.id, set()).add(dependence.source)
            self.accesses[dependence.sink, dependence.k] = Access(
                dependence.sink, dependence.k, "now"
            )
            return
        times = [waited(self.graph, dependence, x) for x in common]
        how = self.how(dependence, common, inner, times)
        if how == "store":
            self.wait(dependence, common, inner, times)
        else:
            for x in inner:
                self.carried.setdefault(x.id, set()).add(dependence.source)
            if how == "before":
                moved = next(k for k, x in enumerate(times) if x.exact != 0)
                for x in common[moved:]:
                    self.carried.setdefault(x.id, set()).add(dependence.source)
        self.accesses[dependence.sink, dependence.k] = Access(dependence.sink, dependence.k, how)

    def how(
        self, dependence: Dependence, common: list[Loop], inner: list[Loop], times: list[Lag]
    ) -> How:
        if dependence.ref.slices or (
            isinstance(self.graph[dependence.source].type, Tuple) and inner
        ):
            return "store"
        if self.is_given_to_a_loop(dependence):
            return "store"
        if not all(self.is_last(dependence, x) for x in inner):
            return "store"
        moved = next((k for k, x in enumerate(times) if x.exact != 0), None)
        if moved is None:
            return "last" if inner else "now"
        depth = len(common)
        first = self.paths[dependence.sink][depth][0] <= self.paths[dependence.source][depth][0]
        within = common[moved + 1 :]
        first = first or any(
            self.begins(dependence.source, x) > self.begins(dependence.sink, x) for x in within
        )
        begun = all(self.begins_anew(dependence, x) for x in within)
        return "before" if times[moved].exact == 1 and first and begun else "store"

    def is_given_to_a_loop(self, dependence: Dependence) -> bool:
        """Does a loop read an input of one point? It is there, and a variable would be a copy.

        Of a state that begins with it, the variable is a copy of its own.
        """
        given, sink = self.graph[dependence.source], self.graph[dependence.sink]
        in_a_loop = len(self.paths[dependence.sink]) > 1 and not isinstance(sink.op, Merge)
        return isinstance(given.op, Input) and not given.domain and in_a_loop

    def begins_anew(self, dependence: Dependence, loop: Loop) -> bool:
        """Does a read at a loop's first step take what that loop computed last, the time before?"""
        d = self.graph[dependence.sink].domain[loop.dim]
        start = d.lo if loop.step > 0 else d.hi - 1
        at = d.lo if d.is_point else pinned(dependence.where, loop.dim)
        known = at is not None and not (symbols(at) | symbols(start)) - self.sizes.keys()
        if not known or evaluate(at, self.sizes) != evaluate(start, self.sizes):
            return False
        return self.is_last(dependence, loop) and self.begins(
            dependence.source, loop
        ) >= self.begins(dependence.sink, loop)

    def is_last(self, dependence: Dependence, loop: Loop) -> bool:
        """Is the point read the one that `loop` computes last?"""
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

    def wait(
        self, dependence: Dependence, common: list[Loop], inner: list[Loop], times: list[Lag]
    ) -> None:
        """Lengthens the store of the source so that this read finds its point."""
        self.asked.setdefault(dependence.source, []).append(dependence)
        slots = self.slots.setdefault(dependence.source, {})
        open_ = False  # from the first loop that separates the two on, every point must be there
        for loop, t in zip(common, times, strict=True):
            if open_:
                slots[loop.dim] = self.extent(dependence.source, loop.dim)
            elif t.exact != 0:
                need = self.waiting(dependence, loop, t)
                slots[loop.dim] = max(slots.get(loop.dim, 1), need)
                open_ = True
        for loop in inner:
            slots[loop.dim] = max(slots.get(loop.dim, 1), self.left(dependence, loop))
        self.overrun(dependence)

    def waiting(self, dependence: Dependence, loop: Loop, time: Lag) -> int:
        """Count the points of a loop that wait for a read at once."""
        full = self.extent(dependence.source, loop.dim)
        if time.high is not None:
            return min(full, time.high + 1)
        here = waited(self.graph, dependence, loop, self.sizes).high
        # a range that goes around the end of a window is copied, or kept twice
        return full if here is None or 2 * (here + 1) > full else here + 1

    def left(self, dependence: Dependence, loop: Loop) -> int:
        """Count the last points of a loop that are asked for behind it."""
        full, d = (
            self.extent(dependence.source, loop.dim),
            self.graph[dependence.source].domain[loop.dim],
        )
        going = (s.op for s in self.graph.statements.values() if isinstance(s.op, Going))
        times = {t for op in going for t in op.times}
        tiles = (d.name for t in times for d in self.graph.children(t, Role.TILES))
        ended = times.union(tiles)
        if loop.dim in ended or varies(d, self.sizes) or self.graph[dependence.sink].accumulates:
            return full
        e = dependence.index[self.graph[dependence.source].domain.dims.index(loop.dim)]
        first, end = (e.lo, e.hi) if isinstance(e, Slice) else (e, lin([(e, 1), (1, 1)]))
        back = lin([(d.hi, 1), (first, -1)]) if loop.step > 0 else lin([(end, 1), (d.lo, -1)])
        box = at_sizes(self.graph[dependence.sink].domain, self.sizes)
        asked = isl.largest(substitute(back, self.sizes), box)
        return max(1, min(full, asked)) if isinstance(asked, int) else full

    def seed(self) -> None:
        """merge(x0, x[t-1]) where x travels along t: x starts as x0, and the merge is x itself."""
        wanted: dict[tuple[int, str], dict[str, str | None]] = {}
        for r in dependences(self.graph):
            if self.accesses[r.sink, r.k].how == "before":
                loop = self.shared(r.source, r.sink)[-1]
                wanted.setdefault((loop.id, r.source), {})[r.sink] = self.first_value(r, loop)
        for (where, source), inits in wanted.items():
            values = set(inits.values())
            if len(values) == 1 and None not in values:
                (init,) = values
                assert init is not None
                self.seeds.setdefault(where, []).append((source, init))
                self.seeded |= set(inits)

    def first_value(self, dependence: Dependence, loop: Loop) -> str | None:
        """The array that a merge reads at a loop's first step; else it reads the step before."""
        node = self.graph[dependence.sink]
        when: tuple[Expr, ...] = getattr(node.op, "when", ())
        if (
            len(when) != 2
            or dependence.k != 1
            or symbols(when[0]) - self.sizes.keys() != frozenset((loop.dim,))
        ):
            return None
        init = node.args[0].name
        if self.accesses[dependence.sink, 0].how not in ("now", "last") or loop in self.shared(
            init, dependence.sink
        ):
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
        if not isl.always(later, Domain((rest,))):
            return None
        return (
            init
            if self.begins(dependence.source, loop) >= self.begins(dependence.sink, loop)
            else None
        )

    def begins(self, statement: str, loop: Loop) -> int:
        """The first time at which a statement runs in a loop."""
        d = self.graph[statement].domain[loop.dim]  # whose other end may vary
        at = evaluate(d.lo, self.sizes) if loop.step > 0 else 1 - evaluate(d.hi, self.sizes)
        return at + loop.shift[statement]

    def overrun(self, dependence: Dependence) -> None:
        """Padded reads may run past the end of a block: it gets room for them."""
        for s, d in zip(
            dependence.ref.index, self.graph.arrays[dependence.ref.name].domain, strict=True
        ):
            if not isinstance(s, Slice) or s.pad is None:
                continue
            box = at_sizes(self.graph[dependence.sink].domain, self.sizes)
            top = isl.largest(substitute(s.lo, self.sizes), box) if len(box) else None
            if not isinstance(top, int):
                top = d.size(self.sizes) - 1
            key = (dependence.ref.name, d.dim)
            end = top + evaluate(s.pad, self.sizes) * s.step
            self.reach[key] = max(self.reach.get(key, 0), end)

    def extent(self, name: str, dim: str) -> int:
        return longest(self.graph.arrays[name].domain, dim, self.sizes)

    def keep_all(self, name: str) -> None:
        """An output keeps every point."""
        slots = self.slots.setdefault(name, {})
        for r in self.graph.arrays[name].domain:
            slots[r.dim] = longest(self.graph.arrays[name].domain, r.dim, self.sizes)

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
                room = max(full, self.reach.get((name, dim), 0) - lo)
                axes.append(StoredAxis(dim, "block", room, lo, node.domain[dim].hi))
            elif n > 1:
                axes.append(StoredAxis(dim, "window", n, lo))
            else:
                axes.append(StoredAxis(dim, "folded", 1))
        output, given = name in self.graph.outputs, self.is_given(name)
        made = Store(name, tuple(axes), node.type, output, given)
        if output or given:
            return made
        asked = [r for r in self.asked.get(name, ()) if r.ref.slices]
        made = in_tiles(made, self.graph, asked, self.sizes)
        return in_a_ring(made, self.graph, asked, self.sizes)

    def is_given(self, name: str) -> bool:
        """Does the caller fill it?"""
        return any(isinstance(w.op, Input) for w in self.graph.writers[name])

    def strided(self, name: str, dim: str, slots: int) -> StoredAxis | None:
        """An axis of the points that are read alone, where these lie a stride apart."""
        asked, domain = self.asked.get(name, ()), self.graph.arrays[name].domain
        whole = name in self.graph.outputs or self.is_given(name)
        if whole or varies(domain[dim], self.sizes) or self.ends_by_data:
            return None
        reads = [(r.index[domain.dims.index(dim)], self.graph[r.sink].domain) for r in asked]
        found = stride(reads, self.sizes)
        if found is None:
            return None
        lo, hi = (evaluate(e, self.sizes) for e in (domain[dim].lo, domain[dim].hi))
        first = found.first(lo)
        end = max(hi + found.step - 1, self.reach.get((name, dim), 0))
        kept = 1 + (end - first) // found.step
        if kept >= slots:
            return None
        return StoredAxis(dim, "strided", kept, first, domain[dim].hi, step=found.step)

    @cached_property
    def ends_by_data(self) -> bool:
        return any(isinstance(s.op, Going) for s in self.graph.statements.values())

    def order(self, name: str) -> list[str]:
        """The dims of an array as the loops around its writers have them, outermost first."""
        paths = [self.paths[w.name] for w in self.graph.writers[name]]
        loops = [x.dim for path in paths for _, x in path if x is not None]
        return [d for d in dict.fromkeys((*loops, *self.graph.arrays[name].domain.dims))]
