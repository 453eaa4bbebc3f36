"""Workers that answer requests, and are watched: who dies, or does not answer, is replaced.

A crew has so many of them, each with one request at a time. Another one in somebody's place is
given what `given` says then, so that its random numbers can be others, and is asked what the one
before was asked; this is said aloud. Workers are made by some `Means`: processes of this machine
(`processes.py`), or of the machines of a cluster (`cluster.py`).
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
"""(given, shared) → what answers requests; a function of a module, which workers import"""
Where = Literal["turns", "processes", "ray"]
"""Workers act in the process that asks, one after the other: slower, but a run can be repeated; or
in processes of this machine; or on the machines of a cluster, through Ray."""

LIVES = 3  # workers in turn of which none has answered


class Gone(Exception):
    """A worker answers no more: why, as in "has died (signal 9)", and what else is known."""

    def __init__(self, why: str, more: str = "") -> None:
        super().__init__(why)
        self.more = more


class Worker(Protocol):
    """Has one request at a time."""

    def ask(self, request: object) -> None:
        """Raises `Gone`."""
        ...

    def heard(self) -> object:
        """The answer; a string if it is an error. Raises `Gone`."""
        ...

    def end(self) -> None: ...


W = TypeVar("W", bound=Worker)


class Means(Protocol[W]):
    """A way to start workers and to wait for them."""

    def born(self, given: object) -> W: ...

    def sent(self, request: object) -> object:
        """Prepare a request once, for all workers."""
        ...

    def ready(self, workers: Sequence[W], seconds: float) -> Sequence[W]:
        """Wait for workers with an answer; return none after so many seconds."""
        ...

    def close(self) -> None: ...


@dataclass
class Watched(Generic[W]):
    """One worker, and what it was asked; None if it is idle."""

    worker: W
    asked: object = None
    since: float = 0.0


class Crew(Generic[W]):
    """`count` workers, each made of `given(who)`."""

    def __init__(
        self,
        means: Means[W],
        count: int,
        given: Callable[[int], object],
        *,
        patience: float,
        say: Say | None = None,
        lost: type[RecurraError] = RecurraError,
    ) -> None:
        """`patience`: seconds that an answer may take. `lost` is raised where nobody answers."""
        self.means, self.count, self.given, self.patience = means, count, given, patience
        self.say, self.lost = say or _aloud, lost
        self.vain = [0] * count  # lives since the last answer
        self.watched: list[Watched[W]] = []

    def ask_idle(self, request: object) -> None:
        """Asks all that are idle; the first time, starts them."""
        if not self.watched:
            self.watched = [Watched(self.means.born(self.given(k))) for k in range(self.count)]
        if idle := [who for who, one in enumerate(self.watched) if one.asked is None]:
            sent = self.means.sent(request)
            for who in idle:
                self._ask(who, sent)

    def ask(self, who: int, request: object) -> None:
        self._ask(who, self.means.sent(request))

    def _ask(self, who: int, sent: object) -> None:
        one = self.watched[who]
        one.asked, one.since = sent, time.monotonic()
        try:
            one.worker.ask(sent)
        except Gone as gone:
            self._replace(who, gone)

    def answer(self) -> tuple[int, Any]:
        """Waits for an answer; who gave it is idle then."""
        while True:
            asked = {id(x.worker): who for who, x in enumerate(self.watched) if x.asked is not None}
            assert asked, "somebody has been asked"
            waiting = [self.watched[who] for who in asked.values()]
            latest = min(x.since for x in waiting) + self.patience
            left = max(0.0, latest - time.monotonic())
            ready = self.means.ready([x.worker for x in waiting], left)
            for worker in ready:
                who = asked[id(worker)]
                if (found := self._heard(who)) is not None:
                    return who, found
            for who in () if ready else asked.values():
                if time.monotonic() - self.watched[who].since >= self.patience:
                    self._replace(who, Gone(f"has not answered for {self.patience:.0f} s"))

    def close(self) -> None:
        """Ends all workers."""
        for one in self.watched:
            one.worker.end()
        self.watched = []
        self.means.close()

    def _heard(self, who: int) -> object:
        one = self.watched[who]
        try:
            found = one.worker.heard()
        except Gone as gone:
            self._replace(who, gone)
            return None
        if isinstance(found, str):
            raise self.lost(f"actor {who} has failed", facts=found)
        one.asked, self.vain[who] = None, 0
        return found

    def _replace(self, who: int, gone: Gone) -> None:
        """Another worker takes somebody's place, and is asked what the one before was asked."""
        old = self.watched[who]
        old.worker.end()
        self.vain[who] += 1
        if self.vain[who] >= LIVES:
            raise self.lost(
                f"actor {who} {gone}, and so did those before it",
                facts=f"{LIVES} processes in turn, and none has answered"
                + (f"\n  {gone.more}" if gone.more else ""),
            )
        self.say(f"actor {who} {gone}: another process takes its place")
        self.watched[who] = Watched(self.means.born(self.given(who)))
        self._ask(who, old.asked)


def _aloud(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
