"""Launches that the next host call does not wait for run beside it, in another thread.

    for t:  step = step_call(..)     the environment, in Python
            act(..)                  the next call waits for it: it runs here
            learn(..)                beside the next call, where a launch ends when it returns

Nothing else runs beside them: whoever launches, or reads an array, waits until they have ended. So
arrays change hands in the order of the program, and may be given away as in any other run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from recurra.backends.protocol import ArrayFunction
from recurra.codegen.host_program import HostItem, HostLoop, Program, RegionLaunch
from recurra.ir.arrays import LibraryArray
from recurra.runtime.async_arrays import ToCome, Waiting, read
from recurra.runtime.executor import Execution


def overlapping_regions(program: Program) -> dict[str, int]:
    """The regions that may run beside a host call, and how many results a launch of each has."""
    launches = list(_launches(program.items))
    others = {x.region.name for x in launches if not x.beside}
    regions = [x.region for x in launches if x.beside and x.region.name not in others]
    return {r.name: len(r.gives) + len(r.stores) for r in regions if not r.asks}


def _launches(items: tuple[HostItem, ...]) -> Iterator[RegionLaunch]:
    for it in items:
        if isinstance(it, RegionLaunch):
            yield it
        elif isinstance(it, HostLoop):
            yield from _launches(it.body)


@dataclass(frozen=True, eq=False, slots=True)
class Result(ToCome):
    """One of the results of a launch in the other thread."""

    launch: Future[tuple[LibraryArray, ...]]
    k: int

    def read(self) -> LibraryArray:
        return self.launch.result()[self.k]


@dataclass
class Settling(Waiting):
    """Waits for results, and for all launches in the other thread before it settles."""

    overlap: OverlappedLaunches

    def settle(self) -> None:
        failed = [x for x in self.overlap.pending if x.exception() is not None]
        self.overlap.pending = failed  # told by whoever waits next
        self.inner.settle()


@dataclass
class OverlappedLaunches:
    """The launches of one run that have been given to the other thread, and have not been waited
    for."""

    pool: ThreadPoolExecutor
    results: dict[str, int]  # of the regions whose launches go there
    pending: list[Future[tuple[LibraryArray, ...]]] = field(
        default_factory=list[Future[tuple[LibraryArray, ...]]]
    )

    def drain(self) -> None:
        """Return when all of them have ended; raises what one of them raised."""
        pending, self.pending = self.pending, []
        for launch in pending:
            launch.result()

    def wrapped(self, name: str, run: ArrayFunction) -> ArrayFunction:
        """A launch of a region: in the other thread, or here when that has ended."""
        count = self.results.get(name)
        if count is None:

            def here(*given: object) -> tuple[LibraryArray, ...]:
                self.drain()
                return run(*map(read, given))

            return here

        def there(*given: object) -> tuple[Result, ...]:
            launch = self.pool.submit(lambda: run(*map(read, given)))
            self.pending.append(launch)
            return tuple(Result(launch, k) for k in range(count))

        return there


@contextmanager
def overlapping(execution: Execution) -> Generator[Execution]:
    """The execution, with launches beside host calls if there are any, for one run."""
    program, inner = execution.program, execution.backend
    may_be = inner.threaded and execution.shards is None and program.offload is None
    results = overlapping_regions(program) if may_be else {}
    if not results:
        yield execution
        return
    with ThreadPoolExecutor(1, "recurra launches") as pool:
        overlap = OverlappedLaunches(pool, results)
        backend = Settling(inner, overlap).backend
        yield execution.using(launches=overlap.wrapped, backend=backend)
        overlap.drain()
