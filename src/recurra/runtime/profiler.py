"""Record when a run's launches, its environment and its moves to slow memory took place.

One stretch of a recorded run is looked at, its second: the first one compiles. A launch ends when
the first number of what it made is there; backends that launch ahead say when by `mark`.
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
    from recurra.ir.arrays import LibraryArray
    from recurra.runtime.executor import Execution

MAX_SPANS = 4000  # spans that are kept


@dataclass(frozen=True)
class Span:
    """Something of a kind that ran from start to stop, in seconds of time.perf_counter."""

    name: str
    kind: str
    start: float
    stop: float


class Watch:
    """`with watching(execution) as (watch, seen)`: `watch.step()` at the end of every stretch."""

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
        """A stretch has ended."""
        now = time.perf_counter()
        if not self.since:
            self.since = now
        elif not self.until:
            self.until = now

    def launch(self, name: str, run: ArrayFunction) -> ArrayFunction:
        """A region that says when it ran."""

        def timed(*given: object) -> tuple[LibraryArray, ...]:
            if not self.on:
                return run(*given)
            start = time.perf_counter()
            made = run(*given)
            if self.mark is None or not made:
                self.found.append(Span(name, "launch", start, time.perf_counter()))
            else:
                self.found.append(self.thread.submit(self.ended, name, start, self.mark(made)))
            return made

        return timed

    def ended(self, name: str, start: float, mark: object) -> Span:
        self.wait(mark)
        return Span(name, "launch", start, time.perf_counter())

    def call(self, name: str, run: ArrayFunction) -> ArrayFunction:
        """A host function that says when it ran: from when what it is given is there."""

        def timed(times: tuple[int, ...], *given: object) -> tuple[LibraryArray, ...]:
            if not self.on:
                return run(times, *given)
            self.wait(given)
            start = time.perf_counter()
            made = run(times, *given)
            self.found.append(Span(name, "environment", start, time.perf_counter()))
            return made

        return timed

    def spans(self, execution: Execution) -> list[Span]:
        """The recorded spans, with the moves meanwhile."""
        seen = [x.result() if isinstance(x, Future) else x for x in self.found]
        moves = execution.mover.moves if execution.mover else ()
        names = ("read", "written")
        seen += [
            Span(f"{m.store} {names[m.out]}", "copy", m.start, m.stop)
            for m in moves
            if self.since <= m.start and m.stop <= self.until
        ]
        return sorted(seen, key=lambda s: s.start)


@contextmanager
def watching(execution: Execution, wanted: bool = True) -> Generator[tuple[Watch, Execution]]:
    """A watch, and the execution that tells it when what ran, if that is wanted."""
    backend = execution.backend
    watch = Watch(getattr(backend, "mark", None), backend.wait)
    try:
        seen = execution.using(launches=watch.launch, calls=watch.call) if wanted else execution
        yield watch, seen
    finally:
        watch.thread.shutdown()
