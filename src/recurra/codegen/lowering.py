"""Lower a schedule to a program: regions between host calls, launched in chunks of a loop.

A launch of the outermost loop runs several steps (the host sees metrics once per launch). A loop
that holds a host call runs on the host, and its stretches without calls are regions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from recurra.codegen.early_exit import EarlyExit, LastValue, PostExitValues, early_exits, fillable
from recurra.codegen.guarded_statements import condition_of
from recurra.codegen.host_calls_first import unawaited_items
from recurra.codegen.host_program import (
    ChunkLoop,
    HostCall,
    HostEnd,
    HostItem,
    HostLoop,
    Program,
    RegionLaunch,
    calls_of,
    regions_of,
)
from recurra.codegen.launch_size import items_ns, launch_steps, polled_steps
from recurra.codegen.loop_segments import LoopSegment, calls_host, segments
from recurra.codegen.passthrough_values import rename_passthrough_values
from recurra.codegen.region import Flow, flow_of, make_region, needed, past_end, steps_below
from recurra.codegen.split_buffers import divided, turns
from recurra.cost.prices import PRICES, Prices
from recurra.ir.dims import Role
from recurra.schedule.dependences import dependences
from recurra.schedule.tree import TOP, Exec, Item, Loop, members
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store, StoredAxis


def lower(
    plan: StoragePlan,
    chunk: int | None = None,
    split_loop: int | None = None,
    host_loops: frozenset[str] = frozenset(),
    prices: Prices = PRICES,
    min_overlapped_ns: float = inf,
    offloaded: Mapping[str, str] = MappingProxyType({}),
    room: int = 0,
    every: frozenset[str] | None = None,
) -> Program:
    """Lower a plan to a program; `chunk` steps of the outermost loop per launch (None: by cost).

    Stores of outputs along a chunked loop hold one chunk. The outermost loop whose id is
    `split_loop` runs on the host, and every loop in it is a launch of its own. So do loops over the
    dims `host_loops`; stores along these have a buffer for each point. Work that no host call waits
    for is a launch of its own if it takes `min_overlapped_ns`: it runs during the next call.
    Stores that are `offloaded` are cut along a dim that the host then loops over. `every` are the
    statements to run (None: those that are needed).
    """
    around = host_loops.union(offloaded.values())
    cut = _Lower(plan, chunk, prices, min_overlapped_ns, split_loop, around)
    every = needed(plan) if every is None else every
    cut.wanted = cut.collect(plan.schedule.items, every, ())
    cut.wanted |= cut.read_at_ends(plan.schedule.items, every, ())
    items = cut.items(plan.schedule.items, every, ())
    starts = cut.deeper(TOP, plan.schedule.items, every)
    found = regions_of(items)
    stores, places = divided(plan, found, calls_of(items), cut.stores, host_loops, offloaded, room)
    return rename_passthrough_values(Program(replace(plan, stores=stores), items, starts, places))


@dataclass
class _Lower:
    plan: StoragePlan
    chunk: int | None
    prices: Prices
    min_overlapped_ns: float
    split_loop: int | None = None
    host_loops: frozenset[str] = frozenset()
    wanted: set[str] = field(default_factory=set[str])
    count: int = 0

    def __post_init__(self) -> None:
        self.stores = dict(self.plan.stores)
        self.endings = early_exits(self.plan.schedule, self.plan.sizes)
        self.ids = itertools.count(1 + max((x.id for x in self.plan.schedule.loops()), default=TOP))
        self.ended: tuple[str, ...] = ()  # the endings known on the host so far

    def read_at_ends(
        self, items: tuple[Item, ...], active: frozenset[str], around: tuple[Loop, ...]
    ) -> set[str]:
        """The values that the host reads to end its loops, and to fill stores past their end."""
        out: set[str] = set()
        for it in items:
            host = self.is_host(it)
            if isinstance(it, Loop) and (host or self.chunked(it, active, around)):
                out |= self.read_at_ends(it.body, active, (*around, it)) if host else set()
                for e in self.endings:
                    if e.sets(it):
                        past = PostExitValues(self.plan.graph, e, it.dim)
                        kept = (past.value(n) for n in self.plan.stores)
                        out |= {e.going, *(x.name for x in kept if isinstance(x, LastValue))}
        return out

    def ends(self, loop: Loop) -> EarlyExit | None:
        """The ending that a loop finds out, if it does."""
        return next((e for e in self.endings if e.sets(loop)), None)

    def follows(self, loop: Loop) -> bool:
        """Does an outermost loop end with another one? Both are then in one launch."""
        others = [x for x in self.plan.schedule.items if isinstance(x, Loop) and x.id != loop.id]
        return any(loop.dim in e.units and any(map(e.sets, others)) for e in self.endings)

    # ---- which items stay on the host

    def is_host(self, it: Item) -> bool:
        alone = isinstance(it, Loop) and it.id == self.split_loop
        return alone or self.counts(it) or calls_host(self.plan.statements, it)

    def counts(self, it: Item) -> bool:
        """Is the item, or a loop in it, a loop over a dim that the host counts?"""
        return isinstance(it, Loop) and (
            it.dim in self.host_loops or any(self.counts(x) for x in it.body)
        )

    def chunked(
        self, it: Item, active: frozenset[str], around: tuple[Loop, ...]
    ) -> list[LoopSegment[int]]:
        """The segments of an outermost loop that runs in chunks, each by a region of its own.

        There are several, if its statements start at different times and one launch is not enough.
        A loop that ends by data is in chunks only then.
        """
        if around or isinstance(it, Exec) or self.is_host(it) or self.follows(it):
            return []
        parts = segments(self.plan.statements, it, active, self.plan.sizes)
        steps = parts[-1].hi - parts[0].lo if parts else 0
        if self.ends(it) and steps <= self.size(it):
            return []
        if len(parts) == 1 and parts[0].active == active & set(members(it.body)):
            return parts if steps > 1 else []
        whole = all(x.hi == y.lo for x, y in itertools.pairwise(parts))
        return parts if whole and steps > max(1, self.size(it)) else []

    def size(self, loop: Loop) -> int:
        """The number of steps of a launch."""
        if self.chunk or not self.ends(loop):
            return self.chunk or launch_steps(self.plan, loop, self.prices)
        return polled_steps(self.plan, loop, self.prices)

    def stretches(
        self, items: tuple[Item, ...], active: frozenset[str], around: tuple[Loop, ...]
    ) -> list[tuple[Item, ...]]:
        """Group items: items without host calls together, all others alone.

        Items that no host call waits for are a group of their own, if they take long enough.
        """
        out: list[list[Item]] = []
        fresh = True
        late = self.late(items, around)
        for it in items:
            fresh = fresh or (bool(late) and it is late[0])
            alone = self.is_host(it) or bool(self.chunked(it, active, around))
            alone = alone or (isinstance(it, Loop) and any(x.id == self.split_loop for x in around))
            if alone or fresh:
                out.append([])
            out[-1].append(it)
            fresh = alone
        return [tuple(g) for g in out]

    def late(self, items: tuple[Item, ...], around: tuple[Loop, ...]) -> tuple[Item, ...]:
        """The items of a host loop that no call waits for, if they are worth a launch."""
        found = unawaited_items(self.plan.statements, items) if around else ()
        return found if items_ns(self.plan, found, self.prices) >= self.min_overlapped_ns else ()

    def may_overlap_call(
        self, group: tuple[Item, ...], items: tuple[Item, ...], around: tuple[Loop, ...]
    ) -> bool:
        """May a group of items of a host loop run beside the next host call?

        It may if no call waits for it, or if the next call is for another group of rows.
        """
        roles = {d.name: d.role for d in self.plan.graph.dims}
        if around and roles.get(around[-1].dim) is Role.GROUPS:
            return any(calls_host(self.plan.statements, it) for it in items)
        return group[0] in self.late(items, around)

    # ---- what crosses borders

    def collect(
        self, items: tuple[Item, ...], active: frozenset[str], around: tuple[Loop, ...]
    ) -> set[str]:
        """Every variable that some host item reads before it writes it."""
        out: set[str] = set()
        for group in self.stretches(items, active, around):
            (first, *_) = group
            parts = self.chunked(first, active, around)
            if isinstance(first, Loop) and parts:
                out |= self.inits(first, active)
                for part in parts:
                    out |= set(flow_of(self.plan, group, part.active, first).uses)
            elif isinstance(first, Loop) and self.is_host(first):
                out |= self.inits(first, active)
                for seg in segments(self.plan.statements, first, active, self.plan.sizes):
                    out |= self.collect(first.body, seg.active, (*around, first))
            else:
                out |= set(flow_of(self.plan, group, active, None, around).uses)
        return out

    def inits(self, loop: Loop, active: frozenset[str]) -> set[str]:
        flow = Flow(self.plan)
        flow.initial_values(loop, active)
        return set(flow.uses)

    def initial_values(self, loop: Loop, active: frozenset[str]) -> tuple[tuple[str, str], ...]:
        return tuple(p for p in self.plan.initial_values.get(loop.id, ()) if p[0] in active)

    # ---- building

    def items(
        self, items: tuple[Item, ...], active: frozenset[str], around: tuple[Loop, ...]
    ) -> tuple[HostItem, ...]:
        out: list[HostItem] = []
        before = self.ended
        for group in self.stretches(items, active, around):
            (first, *_) = group
            parts = self.chunked(first, active, around)
            when = condition_of(self.plan, group, active, around)
            if isinstance(first, Loop) and parts:
                out += self.chunk_loops(first, parts, active)
            elif isinstance(first, Loop) and self.is_host(first):
                out += self.host_loop(first, active, around)
            elif self.is_host(first):
                assert isinstance(first, Exec)
                if first.name in active:
                    out.append(HostCall(first.name, around, when))
            elif any(s in active for s in members(group)):
                name = self.name(around)
                self.ended = (*self.ended, *self.found(group, items, active))
                launched = make_region(
                    self.plan, name, group, active, around, self.wanted, ends=self.ended
                )
                overlaps = self.may_overlap_call(group, items, around)
                out.append(RegionLaunch(launched, when=when, overlaps_call=overlaps))
        self.ended = before
        return tuple(out)

    def found(
        self, group: tuple[Item, ...], items: tuple[Item, ...], active: frozenset[str]
    ) -> list[str]:
        """The endings found by a group of items that host loops beside it end with."""
        loops = [it for it in items if isinstance(it, Loop)]
        mine = [e for e in self.endings if any(e.sets(x) for x in loops if x in group)]
        return [
            e.going
            for e in mine
            if e.going in active and any(e.ends(x) for x in loops if self.is_host(x))
        ]

    def name(self, around: tuple[Loop, ...], dim: str = "") -> str:
        self.count += 1
        place = "_".join([x.dim for x in around] + ([dim] if dim else []))
        return f"region_{self.count}" + (f"_{place}" if place else "")

    def chunk_loops(
        self, loop: Loop, parts: list[LoopSegment[int]], active: frozenset[str]
    ) -> list[ChunkLoop]:
        """A loop in chunks, one ChunkLoop per segment."""
        out: list[ChunkLoop] = []
        size = min(self.size(loop), parts[-1].hi - parts[0].lo)
        ending = self.ends(loop)
        ends = () if ending is None else (ending.going,)
        seeds = self.initial_values(loop, active)
        for part in parts:
            name = self.name((), loop.dim)
            r = make_region(self.plan, name, (loop,), part.active, (), self.wanted, loop, ends)
            if loop.step > 0:
                for n in r.stores:
                    self.stores[n] = self.window(n, loop.dim, size)
            out.append(ChunkLoop(loop, part.lo, part.hi, size, seeds, r))
            seeds = ()
        if ending is None:
            return out
        self.ended = (*self.ended, ending.going)
        return [
            replace(x, end=self.host_end(ending, loop, active, (), x.region.polls, k, len(out)))
            for k, x in enumerate(out)
        ]

    def window(self, name: str, dim: str, size: int) -> Store:
        """An output that only the host reads along the loop needs the slots of one launch."""
        store = self.plan.stores[name]
        read = any(
            r.ref.name == name and self.plan.access(r.sink, r.k) == "store"
            for r in dependences(self.plan.statements)
        )
        if not store.output or read or len(self.plan.statements.writers[name]) > 1:
            return store
        axes = tuple(
            StoredAxis(a.dim, "circular", size) if a.dim == dim and a.kind == "full" else a
            for a in store.axes
        )
        return replace(store, axes=axes)

    def deeper(
        self,
        where: int,
        items: tuple[Item, ...],
        active: frozenset[str],
        around: tuple[Loop, ...] = (),
    ) -> tuple[str, ...]:
        """The folds that start here and are added to in an inner loop that the host runs."""
        inside = [
            s
            for it in items
            if isinstance(it, Loop) and (self.is_host(it) or self.chunked(it, active, around))
            for s in members(it.body)
        ]
        return steps_below(self.plan, where, inside)

    def host_loop(
        self, loop: Loop, active: frozenset[str], around: tuple[Loop, ...]
    ) -> list[HostItem]:
        out: list[HostItem] = []
        seeds = self.initial_values(loop, active)
        parts = segments(self.plan.statements, loop, active, self.plan.sizes)
        ending = own = self.ends(loop)
        if own is None:  # it ends with a loop that ran before it
            known = (e for e in self.endings if e.going in self.ended and e.ends(loop))
            ending = next(known, None)
        turned = [x for x in parts if not around and turns(self.plan, loop, x, self.host_loops)]
        for seg in turned:
            out += self.turned(loop, seg)
            parts.remove(seg)
        if not around and not turned and loop.step > 0 and self.counts(loop):
            for n in self.stores.keys() & set(map(self.plan.written, members(loop.body))):
                self.stores[n] = self.window(n, loop.dim, 1)
        for k, seg in enumerate(parts):
            body = self.items(loop.body, seg.active, (*around, loop))
            within = self.deeper(loop.id, loop.body, seg.active, (*around, loop))
            starts = tuple(s for s in within if s in seg.active)
            end = None
            if ending is not None:
                asks = own is not None and own.going in seg.active
                end = self.host_end(ending, loop, active, around, asks, k, len(parts))
                end = replace(end, first=end.first and own is not None)
            out.append(HostLoop(loop, seg.lo, seg.hi, seeds, starts, body, end))
            seeds = ()
        if own is not None:
            self.ended = (*self.ended, own.going)
        return out

    def turned(self, loop: Loop, seg: LoopSegment[int]) -> list[HostItem]:
        """Interchange host loops with a segment of a loop; the rest stays inside."""
        out: list[HostItem] = []
        for x in loop.body:
            if not isinstance(x, Loop) or x.dim not in self.host_loops:
                continue
            for part in segments(self.plan.statements, x, seg.active, self.plan.sizes):
                inside = replace(loop, id=next(self.ids), body=x.body)  # not in the schedule:
                outside = replace(x, id=next(self.ids), body=(inside,))  # they carry nothing
                name = self.name((outside,), loop.dim)
                launched = make_region(
                    self.plan, name, (inside,), part.active, (outside,), self.wanted, inside
                )
                body = (RegionLaunch(launched, (seg.lo, seg.hi)),)
                out.append(HostLoop(outside, part.lo, part.hi, (), (), body))
        rest = tuple(x for x in loop.body if not (isinstance(x, Loop) and x.dim in self.host_loops))
        body = self.items(rest, seg.active, (loop,))
        return [*out, HostLoop(loop, seg.lo, seg.hi, (), (), body)] if body else out

    def host_end(
        self,
        ended: EarlyExit,
        loop: Loop,
        active: frozenset[str],
        around: tuple[Loop, ...],
        asks: bool,
        index: int,
        parts: int,
    ) -> HostEnd:
        """The end of segment `index` of a loop on the host."""
        late = max(loop.shift[s] for s in members(loop.body) if s in loop.shift)
        if index < parts - 1:
            return HostEnd(ended.going, ended.points, late, asks, index == 0, None)
        past = PostExitValues(self.plan.graph, ended, loop.dim)
        kept = fillable(self.plan, loop, active)
        left = [n for n in kept if self.stores[n] != self.plan.stores[n]]
        rest = tuple((n, x if (x := past.value(n)) is not None else 0.0) for n in left)
        tail = past_end(self.plan, self.name(around, loop.dim), loop, ended, active, around, left)
        return HostEnd(ended.going, ended.points, late, asks, index == 0, tail, rest)
