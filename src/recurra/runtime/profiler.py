"""A timeline of a run: its launches, host calls and moves to slow memory.

Only the second stretch of a recorded run is timed, as the first one compiles. A launch ends when
its first result is ready; backends that launch asynchronously find that out by `mark`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recurra.backends.protocol import ArrayFunction
    from recurra.ir.array_protocols import LibraryArray
    from recurra.runtime.host_executor import Execution

MAX_SPANS = 4000


@dataclass(frozen=True)
class Span:
    """A launch, call or copy from start to stop, in seconds of time.perf_counter."""

    name: str
    kind: str
    start: float
    stop: float


class Watch:
    """A recorder of spans, see `watching`; `step()` is called at the end of every stretch."""

    def __init__(
        self, mark: Callable[[object], object] | None, wait: Callable[[object], object]
    ) -> None:
        self.mark, self.wait = mark, wait
        self.found: list[Span | Future[Span]] = []
        self.since, self.until = 0.0, 0.0
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="recurra-watch")

    @property
    def on(self) -> bool:
        return bool(self.since) and not self.until and len(self.found) < MAX_SPANS

    def step(self) -> None:
        """End a stretch: the first call starts recording, the second one stops it."""
        now = time.perf_counter()
        if not self.since:
            self.since = now
        elif not self.until:
            self.until = now

    def launch(self, name: str, run: ArrayFunction) -> ArrayFunction:
        """Wrap a region so that its launches are recorded."""

        def timed(*args: object) -> tuple[LibraryArray, ...]:
            if not self.on:
                return run(*args)
            start = time.perf_counter()
            results = run(*args)
            if self.mark is None or not results:
                self.found.append(Span(name, "launch", start, time.perf_counter()))
            else:
                self.found.append(self.thread.submit(self.ended, name, start, self.mark(results)))
            return results

        return timed

    def ended(self, name: str, start: float, mark: object) -> Span:
        self.wait(mark)
        return Span(name, "launch", start, time.perf_counter())

    def call(self, name: str, run: ArrayFunction) -> ArrayFunction:
        """Wrap a host function so that its calls are recorded, from when its operands are ready."""

        def timed(times: tuple[int, ...], *args: object) -> tuple[LibraryArray, ...]:
            if not self.on:
                return run(times, *args)
            self.wait(args)
            start = time.perf_counter()
            results = run(times, *args)
            self.found.append(Span(name, "environment", start, time.perf_counter()))
            return results

        return timed

    def spans(self, execution: Execution) -> list[Span]:
        """The recorded spans, and the moves of offloaded stores meanwhile, by start."""
        recorded = [x.result() if isinstance(x, Future) else x for x in self.found]
        moves = execution.mover.moves if execution.mover else ()
        names = ("read", "written")
        recorded += [
            Span(f"{m.store} {names[m.out]}", "copy", m.start, m.stop)
            for m in moves
            if self.since <= m.start and m.stop <= self.until
        ]
        return sorted(recorded, key=lambda s: s.start)


@contextmanager
def watching(execution: Execution, wanted: bool = True) -> Generator[tuple[Watch, Execution]]:
    """Yield a watch, and the execution whose launches and calls it records, if `wanted`."""
    backend = execution.backend
    watch = Watch(getattr(backend, "mark", None), backend.wait)
    try:
        watched = execution.using(launches=watch.launch, calls=watch.call) if wanted else execution
        yield watch, watched
    finally:
        watch.thread.shutdown()
