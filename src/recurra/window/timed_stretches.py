"""Stretches of launches: how they run, one by one or through the window, and how long they took."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from recurra.window.gain_model import MOST, SAMPLE, Judgment
from recurra.window.task import Task
from recurra.window.wrapper import Wrapper

Called = tuple[Wrapper, tuple[object, ...], dict[str, object]]
RARELY = 1024  # launches between two looks at the clock, while nothing is examined


@dataclass(slots=True)
class Stretch:
    """The present one. While launches run one by one and are timed, what was called is kept: what
    that touched is looked up when the time is over."""

    judgment: Judgment
    least: int = SAMPLE  # launches, if nothing is in flight
    most: int = MOST
    straight: bool = False  # launches run at once, one by one
    timed: bool = True
    seen: bool = False  # what runs is recorded
    direct: bool = False  # nobody looks at a launch at all
    launched: list[tuple[Task, Hashable]] = field(default_factory=list[tuple[Task, Hashable]])
    called: list[Called] = field(default_factory=list[Called])
    count: int = 0
    ran: int = 0  # launches one by one, before it
    since: float = field(default_factory=time.perf_counter)
    before: float = 0.0  # seconds, until it was stopped

    def alone(self) -> int:
        """Launches that ran one by one, until now."""
        return self.ran + (self.count if self.straight else 0)

    def over(self, *, waited: bool) -> bool:
        """Does the stretch end here? `waited` says that nothing is in flight anyway."""
        if not (self.timed or self.straight):
            return waited  # until the failures are told
        if self.timed:
            return self.count >= (
                self.least if waited or self.judgment.predicted is None else self.most
            )
        return (waited or self.count >= RARELY) and time.perf_counter() >= (
            self.judgment.trial.until
        )

    def end(self, *, healthy: bool) -> None:
        """The next one begins; nothing is in flight. With failures about, through the window."""
        now = time.perf_counter()
        if self.timed and self.count >= self.least:
            kinds = self.launched + [_looked_up(*one) for one in self.called]
            self.judgment.ended(not self.straight, self.before + now - self.since, kinds, now)
        on, self.ran = self.judgment.next(now), self.alone()
        self.straight = healthy and not on
        self.timed = on or self.judgment.trial.examining
        self.direct = self.straight and not self.timed and not self.seen
        self.launched.clear()
        self.called.clear()
        self.count, self.since, self.before = 0, time.perf_counter(), 0.0

    def keep(self, wrapper: Wrapper, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Record a call, while launches run one by one and are timed."""
        self.called.append((wrapper, (), {}) if wrapper.kind else (wrapper, args, kwargs))

    def stop(self) -> None:
        """Nothing is launched for a while: that time is not counted."""
        self.before += time.perf_counter() - self.since

    def go_on(self) -> None:
        """After `stop`."""
        self.since = time.perf_counter()


def _looked_up(
    wrapper: Wrapper, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Task, Hashable]:
    task = Task(wrapper.name) if wrapper.kind else wrapper.task(*args, **kwargs)
    return task, kind_of(wrapper, task)


def kind_of(wrapper: Wrapper, task: Task) -> Hashable:
    """Launches of one kind take as long as each other."""
    return wrapper.kind or (wrapper.name, *(s.size for s in (*task.reads, *task.writes)))
