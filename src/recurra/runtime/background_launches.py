"""Launches that the next host call does not wait for run beside it, in another thread.

    for t:  step = step_call(..)     the environment, in Python
            act(..)                  the next call waits for it: it runs here
            learn(..)                beside the next call, where launches are synchronous

Nothing else runs beside them: all other launches, and reads of arrays, wait until they have ended.
So arrays are used in the order of the program, and may be donated as in any other run.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from recurra.backends.protocol import ArrayFunction
from recurra.codegen.host_program import Program, launches_of
from recurra.ir.array_protocols import LibraryArray
from recurra.runtime.async_arrays import PendingArray, WaitingBackend, read
from recurra.runtime.host_executor import Execution


def overlapping_regions(program: Program) -> dict[str, int]:
    """The regions that may run beside a host call, and the number of results of each."""
    launches = launches_of(program.items)
    others = {x.region.name for x in launches if not x.overlaps_call}
    regions = [x.region for x in launches if x.overlaps_call and x.region.name not in others]
    return {r.name: len(r.gives) + len(r.stores) for r in regions if not r.polls}


@dataclass(frozen=True, eq=False, slots=True)
class Result(PendingArray):
    """One result of a launch in the other thread."""

    launch: Future[tuple[LibraryArray, ...]]
    k: int

    def read(self) -> LibraryArray:
        return self.launch.result()[self.k]


@dataclass
class SettlingBackend(WaitingBackend):
    """Waits for results, and for all launches in the other thread before it settles."""

    overlap: OverlappedLaunches

    def synchronize(self) -> None:
        failed = [x for x in self.overlap.pending if x.exception() is not None]
        self.overlap.pending = failed  # raised by whoever waits next
        self.inner.synchronize()


@dataclass
class OverlappedLaunches:
    """The launches of one run in the other thread that nobody has waited for yet."""

    pool: ThreadPoolExecutor
    results: dict[str, int]  # the number of results, by region
    pending: list[Future[tuple[LibraryArray, ...]]] = field(
        default_factory=list[Future[tuple[LibraryArray, ...]]]
    )

    def drain(self) -> None:
        """Wait until all launches have ended. Raises the error of one that failed."""
        pending, self.pending = self.pending, []
        for launch in pending:
            launch.result()

    def wrapped(self, name: str, run: ArrayFunction) -> ArrayFunction:
        """Wrap a region's launch: it runs in the other thread, or here once that is idle."""
        count = self.results.get(name)
        if count is None:

            def here(*args: object) -> tuple[LibraryArray, ...]:
                self.drain()
                return run(*map(read, args))

            return here

        def there(*args: object) -> tuple[Result, ...]:
            launch = self.pool.submit(lambda: run(*map(read, args)))
            self.pending.append(launch)
            return tuple(Result(launch, k) for k in range(count))

        return there


@contextmanager
def overlapping(execution: Execution) -> Generator[Execution]:
    """The execution for one run, with launches beside host calls if there are any."""
    program, inner = execution.program, execution.backend
    may_be = inner.threaded and execution.shards is None and program.offload is None
    results = overlapping_regions(program) if may_be else {}
    if not results:
        yield execution
        return
    with ThreadPoolExecutor(1, "recurra launches") as pool:
        overlap = OverlappedLaunches(pool, results)
        backend = SettlingBackend(inner, overlap).backend
        yield execution.using(launches=overlap.wrapped, backend=backend)
        overlap.drain()
