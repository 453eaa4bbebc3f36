"""lower: cuts a schedule into regions at host calls, and runs the outermost loop in chunks.

A launch of the outermost loop runs several steps (the host sees metrics once per launch); a loop
that holds a host call runs on the host, its pure stretches are regions of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from recurra.cost.model import compute_ns
from recurra.cost.prices import PRICES, Prices
from recurra.memory.plan import Plan, waited
from recurra.memory.store import Axis, Store
from recurra.program.ended import Ended, Kept, PastEnd, endings
from recurra.program.region import Flow, Region, flow_of, past_end, region, steps_below
from recurra.program.steps import Segment, calls_host, members, segments, trips
from recurra.schedule.tree import Exec, Item, Loop, equation, reads


@dataclass(frozen=True)
class Launch:
    """Runs a region."""

    region: Region


@dataclass(frozen=True)
class HostCall:
    """Runs one call to the outside world."""

    statement: str
    around: tuple[Loop, ...]


@dataclass(frozen=True)
class HostLoop:
    """Times lo..hi-1 of a loop, on the host."""

    loop: Loop
    lo: int
    hi: int
    seeds: tuple[tuple[str, str], ...]
    starts: tuple[str, ...]  # folds that start anew with every step, added to in loops further in
    body: tuple[HostItem, ...]
    end: HostEnd | None = None


@dataclass(frozen=True)
class HostEnd:
    """A loop ends where no row goes on: the host asks `going` after each step that computes it.

    Statements run up to `late` steps after their point. `first` and `tail` belong to the first and
    the last stretch of the loop: after that one the stores are filled.
    """

    going: str
    points: int
    late: int
    asks: bool
    first: bool
    tail: Region | None


@dataclass(frozen=True)
class ChunkLoop:
    """Times lo..hi-1 of a loop, launched by one region up to the next multiple of `size`."""

    loop: Loop
    lo: int
    hi: int
    size: int
    seeds: tuple[tuple[str, str], ...]
    region: Region


HostItem = Launch | HostCall | HostLoop | ChunkLoop
CHUNK, MOST = 8, 1024  # steps per launch: at least, at most
LAUNCH_NS = (
    2e6  # a launch should do this much work: its own cost is then small, and the host sees it often
)


@dataclass(frozen=True)
class Program:
    """What runs, where everything lives, and what the host does in between."""

    plan: Plan
    items: tuple[HostItem, ...]
    starts: tuple[str, ...] = ()  # folds over host loops that start once

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(_regions(self.items))

    @property
    def main(self) -> ChunkLoop | HostLoop | None:
        """The outermost loop along which the most travels: runs are saved at its steps."""
        found = [it for it in self.items if isinstance(it, (ChunkLoop, HostLoop))]
        return max(found, key=lambda it: (len(self.travelling(it)), it.hi - it.lo), default=None)

    @property
    def stretches(self) -> list[ChunkLoop | HostLoop]:
        """The parts of the main loop, in order: some statements run in the first steps only."""
        main, loops = self.main, (ChunkLoop, HostLoop)
        return [x for x in self.items if main and isinstance(x, loops) and x.loop is main.loop]

    def travelling(self, it: ChunkLoop | HostLoop) -> tuple[str, ...]:
        """The variables that one step of an outermost loop leaves for the next.

        Of several stretches it is all that any of them gives: another may read it, or what follows.
        """
        if isinstance(it, HostLoop):
            return tuple(sorted(self.plan.carried.get(id(it.loop), ())))
        stretches = [x for x in self.items if isinstance(x, ChunkLoop) and x.loop is it.loop]
        if len(stretches) == 1:
            return it.region.carried
        return tuple(dict.fromkeys(v for x in stretches for v in x.region.gives))

    def waiting(self, it: ChunkLoop | HostLoop) -> tuple[str, ...]:
        """The stores that later steps of an outermost loop, or what follows it, read on."""
        graph, paths = self.plan.graph, self.plan.schedule.paths()

        def inside(statement: str) -> bool:
            return any(x is it.loop for _, x in paths[statement])

        found = {
            r.source
            for r in reads(graph)
            if self.plan.accesses[r.sink, r.k].how == "store" and inside(r.source)
            if not inside(r.sink) or waited(graph, r, it.loop).exact != 0
        }
        return tuple(sorted(found))


def _regions(items: tuple[HostItem, ...]) -> list[Region]:
    out: list[Region] = []
    for it in items:
        match it:
            case Launch(region=r) | ChunkLoop(region=r):
                out.append(r)
            case HostLoop(body=body, end=end):
                out += [*_regions(body), *([end.tail] if end and end.tail else [])]
            case HostCall():
                pass
    return out


def lower(
    plan: Plan, chunk: int | None = None, apart: Loop | None = None, prices: Prices = PRICES
) -> Program:
    """The program of a plan; `chunk` steps of the outermost loop per launch (None: by their cost).

    Stores of outputs along a chunked loop hold one chunk. The outermost loop `apart` runs on the
    host, and every loop in it is a launch of its own.
    """
    cut = _Lower(plan, chunk, prices, apart)
    every = frozenset(members(plan.schedule.items))
    cut.wanted = cut.collect(plan.schedule.items, every, ()) | cut.asked(plan.schedule.items)
    items = cut.items(plan.schedule.items, every, ())
    starts = cut.deeper(0, plan.schedule.items, every)
    return Program(replace(plan, stores=cut.stores), items, starts)


@dataclass
class _Lower:
    plan: Plan
    chunk: int | None
    prices: Prices
    apart: Loop | None = None
    wanted: set[str] = field(default_factory=set[str])
    count: int = 0

    def __post_init__(self) -> None:
        self.stores = dict(self.plan.stores)
        self.endings = endings(self.plan.graph, self.plan.sizes)
        self.ended: tuple[str, ...] = ()  # what has ended loops of the body at hand, on the host

    def asked(self, items: tuple[Item, ...]) -> set[str]:
        """What the host reads to end loops that it runs, and to fill stores past their end."""
        out: set[str] = set()
        for it in items:
            if isinstance(it, Loop) and self.is_host(it):
                out |= self.asked(it.body)
                for e in self.endings:
                    if e.sets(it):
                        past = PastEnd(self.plan.graph, e)
                        kept = (past.value(n) for n in self.plan.stores)
                        out |= {e.going, *(x.name for x in kept if isinstance(x, Kept))}
        return out

    def ends(self, loop: Loop) -> Ended | None:
        """What a loop finds out the end of."""
        return next((e for e in self.endings if e.sets(loop)), None)

    # ---- which items stay on the host

    def is_host(self, it: Item) -> bool:
        return it is self.apart or calls_host(self.plan.graph, it)

    def chunked(self, it: Item, active: frozenset[str], around: tuple[Loop, ...]) -> list[Segment]:
        """The stretches of an outermost loop that runs in chunks, each by a region of its own.

        Several, as their statements start at different times, where one launch is not enough.
        """
        if around or isinstance(it, Exec) or self.is_host(it) or self.ends(it):
            return []
        parts = segments(self.plan.graph, it, active, self.plan.sizes)
        steps = parts[-1].hi - parts[0].lo if parts else 0
        if len(parts) == 1 and parts[0].active == active & set(members(it.body)):
            return parts if steps > 1 else []
        whole = all(x.hi == y.lo for x, y in pairwise(parts))
        return parts if whole and steps > max(1, self.size(it)) else []

    def size(self, loop: Loop) -> int:
        """Steps of a launch."""
        return self.chunk or launch_steps(self.plan, loop, self.prices)

    def stretches(
        self, items: tuple[Item, ...], active: frozenset[str], around: tuple[Loop, ...]
    ) -> list[tuple[Item, ...]]:
        """Items grouped: pure stretches together, everything else alone."""
        out: list[list[Item]] = []
        fresh = True
        for it in items:
            alone = self.is_host(it) or bool(self.chunked(it, active, around))
            alone = alone or (isinstance(it, Loop) and any(x is self.apart for x in around))
            if alone or fresh:
                out.append([])
            out[-1].append(it)
            fresh = alone
        return [tuple(g) for g in out]

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
                for seg in segments(self.plan.graph, first, active, self.plan.sizes):
                    out |= self.collect(first.body, seg.active, (*around, first))
            else:
                out |= set(flow_of(self.plan, group, active, None, around).uses)
        return out

    def inits(self, loop: Loop, active: frozenset[str]) -> set[str]:
        flow = Flow(self.plan)
        flow.seeds(loop, active)
        return set(flow.uses)

    def seeds(self, loop: Loop, active: frozenset[str]) -> tuple[tuple[str, str], ...]:
        return tuple(p for p in self.plan.seeds.get(id(loop), ()) if p[0] in active)

    # ---- building

    def items(
        self, items: tuple[Item, ...], active: frozenset[str], around: tuple[Loop, ...]
    ) -> tuple[HostItem, ...]:
        out: list[HostItem] = []
        before = self.ended
        for group in self.stretches(items, active, around):
            (first, *_) = group
            parts = self.chunked(first, active, around)
            if isinstance(first, Loop) and parts:
                seeds = self.seeds(first, active)
                for part in parts:
                    out.append(self.chunk_loop(first, part, seeds, parts[-1].hi - parts[0].lo))
                    seeds = ()
            elif isinstance(first, Loop) and self.is_host(first):
                out += self.host_loop(first, active, around)
            elif self.is_host(first):
                assert isinstance(first, Exec)
                if first.name in active:
                    out.append(HostCall(first.name, around))
            elif any(s in active for s in members(group)):
                name = self.name(around)
                made = region(self.plan, name, group, active, around, self.wanted, ends=self.ended)
                out.append(Launch(made))
        self.ended = before
        return tuple(out)

    def name(self, around: tuple[Loop, ...], dim: str = "") -> str:
        self.count += 1
        place = "_".join([x.dim for x in around] + ([dim] if dim else []))
        return f"region_{self.count}" + (f"_{place}" if place else "")

    def chunk_loop(
        self, loop: Loop, part: Segment, seeds: tuple[tuple[str, str], ...], steps: int
    ) -> ChunkLoop:
        """One stretch of a loop of so many steps."""
        size = min(self.size(loop), steps)
        r = region(self.plan, self.name((), loop.dim), (loop,), part.active, (), self.wanted, loop)
        if loop.step > 0:
            for n in r.stores:
                self.stores[n] = self.window(n, loop.dim, size)
        return ChunkLoop(loop, part.lo, part.hi, size, seeds, r)

    def window(self, name: str, dim: str, size: int) -> Store:
        """An output that only the host reads along the loop needs the slots of one launch."""
        store = self.plan.stores[name]
        read = any(
            a.name == name and self.plan.accesses[n.name, k].how == "store"
            for n in self.plan.graph.nodes.values()
            for k, a in enumerate(n.args)
            if (n.name, k) in self.plan.accesses
        )
        if not store.output or read:
            return store
        axes = tuple(
            Axis(a.dim, "window", size) if a.dim == dim and a.kind == "block" else a
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
        """Folds that start here and are added to in a loop of it that the host runs, or cuts."""
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
        seeds = self.seeds(loop, active)
        parts = segments(self.plan.graph, loop, active, self.plan.sizes)
        ending = self.ends(loop)
        for k, seg in enumerate(parts):
            body = self.items(loop.body, seg.active, (*around, loop))
            within = self.deeper(id(loop), loop.body, seg.active, (*around, loop))
            starts = tuple(s for s in within if s in seg.active)
            end = None
            if ending is not None:
                tail = k == len(parts) - 1
                asks = ending.going in seg.active
                end = self.host_end(ending, loop, active, around, asks, k == 0, tail)
            out.append(HostLoop(loop, seg.lo, seg.hi, seeds, starts, body, end))
            seeds = ()
        if ending is not None:
            self.ended = (*self.ended, ending.going)
        return out

    def host_end(
        self,
        e: Ended,
        loop: Loop,
        active: frozenset[str],
        around: tuple[Loop, ...],
        asks: bool,
        first: bool,
        last: bool,
    ) -> HostEnd:
        """How the host ends one stretch of a loop."""
        late = max(loop.shift[s] for s in members(loop.body) if s in loop.shift)
        name = self.name(around, loop.dim) if last else ""
        tail = past_end(self.plan, name, loop, e, active, around) if last else None
        return HostEnd(e.going, e.points, late, asks, first, tail)


def launch_steps(plan: Plan, loop: Loop, prices: Prices) -> int:
    """A power of two of steps that fill a launch."""
    size = CHUNK
    while size < MOST and 2 * size * items_ns(plan, loop.body, prices) <= LAUNCH_NS:
        size *= 2
    return size


def items_ns(plan: Plan, items: tuple[Item, ...], prices: Prices) -> float:
    """Every statement once, and the steps of every loop."""
    total = 0.0
    for it in items:
        if isinstance(it, Exec):
            node = plan.graph[equation(it.name)]
            total += prices.statement + compute_ns(plan.graph, node, plan.sizes, prices)
        else:
            total += trips(plan.graph, it, plan.sizes) * items_ns(plan, it.body, prices)
    return total
