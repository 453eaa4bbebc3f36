"""The host part of a program as data: launches, calls and loops of them, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from recurra.codegen.early_exit import LastValue
from recurra.codegen.region import Region
from recurra.codegen.split_buffers import Places
from recurra.ir.expr import TRUE, Expr
from recurra.schedule.dependences import dependences
from recurra.schedule.legality import lag_in_loop
from recurra.schedule.tree import Loop
from recurra.storage.offload import Offload
from recurra.storage.storage_plan import StoragePlan


@dataclass(frozen=True)
class RenamedVariable:
    """After a launch, a variable is renamed: it is another one, or one result of a host call."""

    variable: str
    source: str
    result: int | None = None


@dataclass(frozen=True)
class RegionLaunch:
    """A launch of a region; of a chunk, for the times `span`."""

    region: Region
    span: tuple[int, int] | None = None
    when: Expr = TRUE  # on the times of the loops around
    overlaps_call: bool = False  # may it run during the next host call?
    after: tuple[RenamedVariable, ...] = ()  # all at once


@dataclass(frozen=True)
class HostCall:
    """A call of a host function."""

    statement: str
    around: tuple[Loop, ...]
    when: Expr = TRUE  # on the times of those


@dataclass(frozen=True)
class HostLoop:
    """A loop on the host, over its times lo..hi-1."""

    loop: Loop
    lo: int
    hi: int
    initial_values: tuple[tuple[str, str], ...]
    starts: tuple[str, ...]  # folds reset at every step, and added to in inner loops
    body: tuple[HostItem, ...]
    end: HostEnd | None = None


@dataclass(frozen=True)
class HostEnd:
    """The end of a loop by data: the host polls `going` after each step that computes it.

    Of a loop in chunks, a launch that computes it returns where rows ended. Statements run up to
    `late` steps after their point. `first`, `tail` and `rest` belong to the first and the last
    segment of the loop: after the last one the stores are filled, and outputs that left with every
    launch get the `rest` of their points.
    """

    going: str
    points: int
    late: int
    polls: bool
    first: bool
    tail: Region | None
    rest: tuple[tuple[str, float | LastValue], ...] = ()

    @property
    def border(self) -> str:
        """The name under which a resumed run finds where rows end, as far as is known."""
        return f"{self.going}.end"


@dataclass(frozen=True)
class ChunkLoop:
    """A loop over times lo..hi-1, launched by one region up to the next multiple of `size`.

    With `end`, the region stops by itself, and the host launches no other.
    """

    loop: Loop
    lo: int
    hi: int
    size: int
    initial_values: tuple[tuple[str, str], ...]
    region: Region
    end: HostEnd | None = None


HostItem = RegionLaunch | HostCall | HostLoop | ChunkLoop


@dataclass(frozen=True)
class Program:
    """A compiled program: its storage plan, and the items that the host runs in order."""

    plan: StoragePlan
    items: tuple[HostItem, ...]
    starts: tuple[str, ...] = ()  # folds over host loops that start once
    places: Places = field(default_factory=dict)  # of stores with one buffer per point
    offload: Offload | None = None  # the slow memory of offloaded stores
    values: tuple[str, ...] = ()  # outputs that a region returns as values, without a store

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(regions_of(self.items))

    @property
    def main(self) -> ChunkLoop | HostLoop | None:
        """The outermost loop that carries the most variables: runs are saved at its steps."""
        found = [it for it in self.items if isinstance(it, (ChunkLoop, HostLoop))]
        return max(found, key=lambda it: (len(self.traveling(it)), it.hi - it.lo), default=None)

    @property
    def stretches(self) -> list[ChunkLoop | HostLoop]:
        """The segments of the main loop, in order: some statements run in the first steps only."""
        main = self.main
        loops = [x for x in self.items if isinstance(x, (ChunkLoop, HostLoop))]
        return [x for x in loops if main and x.loop.id == main.loop.id]

    def traveling(self, it: ChunkLoop | HostLoop) -> tuple[str, ...]:
        """The variables that one step of an outermost loop leaves for the next.

        Of several segments, all that any of them returns: another may read it, or a later item.
        """
        if isinstance(it, HostLoop):  # some carried variables are for readers that never run
            crossing = {v for r in self.regions for v in (*r.held, *r.carried, *r.gives)}
            crossing.update(
                calls_of(self.items), (x.variable for x in renamed_variables(self.items))
            )
            return tuple(sorted(crossing & self.plan.carried.get(it.loop.id, frozenset[str]())))
        stretches = [x for x in self.items if isinstance(x, ChunkLoop) and x.loop.id == it.loop.id]
        if len(stretches) == 1:
            return it.region.carried
        return tuple(dict.fromkeys(v for x in stretches for v in x.region.gives))

    def waiting(self, it: ChunkLoop | HostLoop) -> tuple[str, ...]:
        """The stores that later steps of an outermost loop, or later items, still read."""
        statements = self.plan.statements

        def inside(statement: str) -> bool:
            return it.loop.id in self.plan.loops_around[statement]

        found = {
            self.plan.store_of(r.ref.name)
            for r in dependences(statements)
            if self.plan.access(r.sink, r.k) == "store" and inside(r.source)
            if not inside(r.sink) or lag_in_loop(statements, r, it.loop).exact != 0
        }
        return tuple(sorted(found))


def at_any_depth(items: Iterable[HostItem]) -> Iterator[HostItem]:
    """Yield items and those of the loops among them, each loop after its body."""
    for it in items:
        if isinstance(it, HostLoop):
            yield from at_any_depth(it.body)
        yield it


def launches_of(items: Iterable[HostItem]) -> list[RegionLaunch]:
    """The single launches among some items, at any depth."""
    return [it for it in at_any_depth(items) if isinstance(it, RegionLaunch)]


def regions_of(items: Iterable[HostItem]) -> list[Region]:
    """The regions launched by some items, at any depth."""
    out: list[Region] = []
    for it in at_any_depth(items):
        if isinstance(it, (RegionLaunch, ChunkLoop)) and not it.region.is_empty:
            out.append(it.region)
        if isinstance(it, (ChunkLoop, HostLoop)) and it.end and it.end.tail:
            out.append(it.end.tail)
    return out


def renamed_variables(items: Iterable[HostItem]) -> list[RenamedVariable]:
    """The variables that the host renames after launches of some items."""
    return [x for it in launches_of(items) for x in it.after]


def calls_of(items: Iterable[HostItem]) -> dict[str, tuple[Loop, ...]]:
    """The loops around each host call, by its statement."""
    return {it.statement: it.around for it in at_any_depth(items) if isinstance(it, HostCall)}
