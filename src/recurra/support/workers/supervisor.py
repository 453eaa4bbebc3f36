"""A crew of workers that answer requests; a worker that dies or hangs is replaced.

Each worker has one request at a time. Its replacement gets new arguments, so that it can draw other
random numbers, and the same request; a notice says so. Workers are started by a `WorkerFactory`: as
processes of this machine (`processes.py`), or on the machines of a cluster (`cluster.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from recurra.errors import RecurraError

Say = Callable[[str], None]
Start = Callable[[Any, Any], Callable[[Any], Any]]
"""(arguments, shared) → the function that answers requests; workers import it from its module"""
Where = Literal["turns", "processes", "ray"]
"""Workers act in the calling process, one after the other: slower, but a run can be repeated; or in
processes of this machine; or on the machines of a cluster, through Ray."""

LIVES = 3  # the number of consecutive workers without an answer at which the crew fails


class WorkerGone(Exception):
    """A worker died or hangs: the reason, as in "has died (signal 9)", and more details."""

    def __init__(self, why: str, more: str = "") -> None:
        super().__init__(why)
        self.more = more


class Worker(Protocol):
    """A worker with at most one request at a time."""

    def send(self, request: object) -> None:
        """Send a request; raises `WorkerGone`."""

    def receive(self) -> object:
        """Return the answer, a string if it is an error; raises `WorkerGone`."""

    def stop(self) -> None: ...


W = TypeVar("W", bound=Worker)


class WorkerFactory(Protocol[W]):
    """A way to start workers and to wait for them."""

    def start(self, arguments: object) -> W: ...

    def prepare(self, request: object) -> object:
        """Prepare a request once, for all workers."""

    def wait(self, workers: Sequence[W], seconds: float) -> Sequence[W]:
        """Wait for workers with an answer; return none after so many seconds."""
        ...

    def close(self) -> None: ...


@dataclass
class SupervisedWorker(Generic[W]):
    """One worker, and its request; None if it is idle."""

    worker: W
    request: object = None
    since: float = 0.0  # monotonic seconds


class Crew(Generic[W]):
    """Workers of a factory, each started with `arguments(its number)`."""

    def __init__(
        self,
        factory: WorkerFactory[W],
        count: int,
        arguments: Callable[[int], object],
        *,
        patience: float,
        say: Say | None = None,
        lost: type[RecurraError] = RecurraError,
    ) -> None:
        """`patience`: seconds that an answer may take. `lost` is raised if no worker answers."""
        self.factory, self.count, self.arguments = factory, count, arguments
        self.patience, self.say, self.lost = patience, say or _say, lost
        self.failures = [0] * count  # since the last answer, by worker
        self.workers: list[SupervisedWorker[W]] = []

    def _start(self, number: int) -> SupervisedWorker[W]:
        return SupervisedWorker(self.factory.start(self.arguments(number)))

    def ask_idle(self, request: object) -> None:
        """Send a request to all idle workers; the first time, start them."""
        self.workers = self.workers or [self._start(k) for k in range(self.count)]
        if idle := [k for k, one in enumerate(self.workers) if one.request is None]:
            prepared = self.factory.prepare(request)
            for k in idle:
                self._send(k, prepared)

    def ask(self, number: int, request: object) -> None:
        self._send(number, self.factory.prepare(request))

    def _send(self, number: int, prepared: object) -> None:
        one = self.workers[number]
        one.request, one.since = prepared, time.monotonic()
        try:
            one.worker.send(prepared)
        except WorkerGone as gone:
            self._replace(number, gone)

    def answer(self) -> tuple[int, Any]:
        """Wait for an answer; return it, and the number of its worker, which is idle then."""
        while True:
            busy = {id(x.worker): k for k, x in enumerate(self.workers) if x.request is not None}
            assert busy, "a worker has a request"
            waiting = [self.workers[k] for k in busy.values()]
            latest = min(x.since for x in waiting) + self.patience
            left = max(0.0, latest - time.monotonic())
            ready = self.factory.wait([x.worker for x in waiting], left)
            for worker in ready:
                number = busy[id(worker)]
                if (answer := self._receive(number)) is not None:
                    return number, answer
            for number in () if ready else busy.values():
                if time.monotonic() - self.workers[number].since >= self.patience:
                    silent = f"has not answered for {self.patience:.0f} s"
                    self._replace(number, WorkerGone(silent))

    def close(self) -> None:
        """Stop all workers."""
        for one in self.workers:
            one.worker.stop()
        self.workers = []
        self.factory.close()

    def _receive(self, number: int) -> object:
        one = self.workers[number]
        try:
            answer = one.worker.receive()
        except WorkerGone as gone:
            self._replace(number, gone)
            return None
        if isinstance(answer, str):
            raise self.lost(f"actor {number} has failed", facts=answer)
        one.request, self.failures[number] = None, 0
        return answer

    def _replace(self, number: int, gone: WorkerGone) -> None:
        """Start another worker in place of one, and send it the same request."""
        old = self.workers[number]
        old.worker.stop()
        self.failures[number] += 1
        if self.failures[number] >= LIVES:
            raise self.lost(
                f"actor {number} {gone}, and so did those before it",
                facts=f"{LIVES} processes in turn, and none has answered"
                + (f"\n  {gone.more}" if gone.more else ""),
            )
        self.say(f"actor {number} {gone}: another process takes its place")
        self.workers[number] = self._start(number)
        self._send(number, old.request)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
