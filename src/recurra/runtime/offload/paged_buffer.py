"""A store of which only a few points are in memory, and the thread that moves them.

o_store[t] = act(.., o_store.blank(t))     written here, moved while later points are made
learn(.., o_store[t])                      read ahead, in the direction of the loop
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import thread as pools
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, TypeVar
from weakref import finalize

import numpy as np

from recurra.cost.thresholds import MAX_RECORDED_MOVES, MOVER_POLL_SECONDS
from recurra.ir.types import NUMPY_NAME
from recurra.runtime.offload.tiers import Disk, DiskTier, HostTier, SlowTier
from recurra.storage.offload import Offload
from recurra.storage.store import Store
from recurra.support.aligned_array import aligned

if TYPE_CHECKING:
    from recurra.backends.protocol import Backend
    from recurra.codegen.host_program import Program

Moved = TypeVar("Moved")


def offloaded(program: Program) -> str:
    """A line that names the stores that a run moves, and where to; empty if it moves nothing."""
    if program.offload is None:
        return ""
    plan, offload = program.plan, program.offload
    stores = [s for s in plan.stores.values() if s.room]
    names, total = ", ".join(s.name for s in stores), sum(s.nbytes(plan.sizes) for s in stores)
    where = offload.tier
    if where == "disk":
        where += f" of {offload.folder or tempfile.gettempdir()}"
    return f"offload: {names}, {total:,} bytes in all, to the {where}\n"


@dataclass(frozen=True)
class PageMove:
    """A point of a store that was written or read; times of time.perf_counter."""

    store: str
    point: int
    out: bool
    start: float
    stop: float


class Mover:
    """The thread that copies one point after the other, and the record of its moves."""

    def __init__(self) -> None:
        self.moves: deque[PageMove] = deque(maxlen=MAX_RECORDED_MOVES)
        self.stores: list[Paged] = []
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="recurra-offload")
        self.closing = finalize(self, closed, self.thread, self.stores)

    def move(
        self,
        store: str,
        point: int,
        out: bool,
        copy: Callable[[], Moved],
        when: Callable[[], None] | None = None,
    ) -> Future[Moved]:
        """Have the thread copy a point, after it has waited by `when`."""

        def timed() -> Moved:
            if when is not None:
                when()
            since = time.perf_counter()
            result = copy()
            self.moves.append(PageMove(store, point, out, since, time.perf_counter()))
            return result

        return self.thread.submit(timed)

    def store(
        self, buffer: Store, offload: Offload, sizes: Mapping[str, int], backend: Backend
    ) -> Paged:
        """Make an offloaded store. Raises RecurraError if there is no room for it."""
        assert buffer.per_point is not None
        count, nbytes = buffer.per_point.slots, buffer.nbytes(sizes) // buffer.per_point.slots
        shape, dtype = buffer.shape(sizes), np.dtype(NUMPY_NAME[buffer.type.dtype])
        there: SlowTier = HostTier(backend)
        if offload.tier == "disk":
            file = Disk(buffer.name, count, nbytes, offload.folder)
            there = DiskTier(backend, file, np.empty(shape, dtype))
        self.stores.append(
            Paged(buffer.name, count, buffer.room, shape, dtype, there, backend, self)
        )
        return self.stores[-1]

    def close(self) -> None:
        """Stop moving; a run that is never ended is closed when the process ends."""
        self.closing()


def closed(thread: ThreadPoolExecutor, stores: list[Paged]) -> None:
    for early in (e for s in stores for e in s.early.values()):
        early.wanted.set()
    thread.shutdown(cancel_futures=True)
    for s in stores:
        s.slow.close()


@dataclass(frozen=True)
class EarlySamples:
    """Samples that are taken before they are needed, with their numbers."""

    made: Future[tuple[np.ndarray, np.ndarray]]
    wanted: Event


@dataclass
class Paged:
    """The points of a store, by number as in a list; `room` of them are in memory at once.

    A failure of the thread is raised where a point is read, or memory for one is needed.
    """

    name: str
    count: int
    room: int
    shape: tuple[int, ...]
    dtype: np.dtype
    slow: SlowTier
    backend: Backend
    mover: Mover

    def __post_init__(self) -> None:
        self.here: dict[int, object] = {}  # points in memory, the one used last at the end
        self.writes: dict[int, Future[None]] = {}  # writes of points in memory, done or not
        self.ahead: dict[int, Future[object]] = {}  # points that are being read
        self.early: dict[str, EarlySamples] = {}  # samples, by the calls that will need them
        self.out: set[int] = set()  # points that have been written
        self.last, self.way = 0, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> object:
        """A point, read if it is not in memory; zeros if nobody has written it."""
        self.finish_samples()
        x = self.here.pop(index, None)
        if x is None:
            if index not in self.ahead:
                self.empty_slots(1, {index})
                self.fetch(index)
            x = self.ahead.pop(index).result()
        self.here[index] = x
        self.way, self.last = (d if abs(d := index - self.last) == 1 else self.way), index
        self.read_ahead(index)
        return x

    def __setitem__(self, index: int, array: object) -> None:
        """Take a point that a launch has made: it is written while the program goes on."""
        self.drop()
        self.here.pop(index, None)
        self.here[index] = array
        self.out.add(index)
        self.writes[index] = self.mover.move(
            self.name, index, True, lambda: self.write(index, array)
        )
        self.last = index

    def writable(self, index: int) -> object:
        """A point for a launch to change: a pending write of it is finished first."""
        self.drop()
        x = self[index]
        if index in self.writes:
            self.writes.pop(index).result()
        return x

    # ---- samples

    def samples(self, call: str, take: Callable[[], np.ndarray], numbers: np.ndarray) -> np.ndarray:
        """The samples taken early for a call, if these are the numbers; else they are taken now."""
        early = self.early.pop(call, None)
        if early is not None:
            early.wanted.set()
            known, found = early.made.result()
            if np.array_equal(known, numbers):
                return found
        return self.mover.move(self.name, 0, False, take).result()

    def take_early(
        self,
        call: str,
        take: Callable[[], tuple[np.ndarray, np.ndarray]],
        before: Callable[[], np.ndarray | None],
    ) -> None:
        """Take the next call's samples once those `before` are freed, or when it needs them."""
        wanted = Event()

        def when() -> None:
            while before() is not None and not wanted.wait(MOVER_POLL_SECONDS):
                if pools._shutdown:  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
                    break  # the process ends once this thread does

        self.early[call] = EarlySamples(self.mover.move(self.name, 0, False, take, when), wanted)

    def finish_samples(self) -> None:
        """Finish early samples, before points come or go."""
        for early in self.early.values():
            early.wanted.set()
        wait(early.made for early in self.early.values())

    def drop(self) -> None:
        """Discard early samples, whose points may change."""
        self.finish_samples()
        self.early.clear()

    def rows(self, points: np.ndarray, rows: np.ndarray, lead: int) -> np.ndarray:
        """Row `rows[j]` of point `points[j]`, counted over the `lead` first axes: [j, *row]."""
        out = aligned((len(points), *self.shape[lead:]), self.dtype)
        order = np.lexsort((rows, points))  # in storage order
        cuts = np.flatnonzero(np.diff(points[order])) + 1
        for mine in np.split(order, cuts) if len(order) else ():
            self.some(int(points[mine[0]]), rows[mine], mine, out)
        return out

    def some(self, index: int, rows: np.ndarray, to: np.ndarray, out: np.ndarray) -> None:
        """Read some rows of a point, from memory or from its slow place."""
        if index in self.here:
            view = self.backend.host_view(self.backend.wait(self.here[index]))
            out[to] = view.reshape(-1, *out.shape[1:])[rows]
        elif index in self.out:
            self.slow.rows(index, rows, to, out)
        else:
            out[to] = 0

    def empty(self, index: int) -> object:
        """Memory for a launch to fill with a point; if none is left, the least recently used."""
        self.drop()
        self.discard(index)
        if index in self.here:
            return self.evict(index)
        is_full = len(self.here) + len(self.ahead) >= self.room
        if is_full and self.here:
            return self.evict(next(iter(self.here)))
        if is_full:
            self.discard(next(iter(self.ahead)))
        return self.zeros()

    def zeros(self) -> object:
        return self.backend.adopt(np.zeros(self.shape, self.dtype))

    # ---- room

    def discard(self, index: int) -> None:
        """Discard a point that was read ahead."""
        found = self.ahead.pop(index, None)
        if found is not None:
            found.result()

    def evict(self, index: int) -> object:
        """Evict a point, once it is written; return its memory."""
        if index in self.writes:
            self.writes.pop(index).result()
        return self.here.pop(index)

    def empty_slots(self, count: int, wanted: set[int], wait: bool = True) -> bool:
        """Make room by evicting points that are not wanted. Was there enough?"""
        while len(self.here) + len(self.ahead) + count > self.room:
            found = (j for j in self.here if j not in wanted)
            known = (j for j in found if wait or j not in self.writes or self.writes[j].done())
            oldest = next(known, None)
            if oldest is None and wait and self.ahead:
                self.discard(next(iter(self.ahead)))
            elif oldest is None:
                return False
            else:
                self.evict(oldest)
        return True

    # ---- moves

    def read_ahead(self, index: int) -> None:
        """Read the next points in the direction of the loop, if there is room without waiting."""
        nexts = [index + n * self.way for n in range(1, self.room - 1)] if self.way else []
        wanted = {index, *nexts}
        for j in nexts:
            known = j in self.here or j in self.ahead or j not in self.out
            if not known and self.empty_slots(1, wanted, wait=False):
                self.fetch(j)

    def fetch(self, index: int) -> None:
        self.ahead[index] = self.mover.move(self.name, index, False, lambda: self.read(index))

    def read(self, index: int) -> object:
        return self.slow.get(index) if index in self.out else self.zeros()

    def write(self, index: int, array: object) -> None:
        self.slow.put(index, self.backend.wait(array))
