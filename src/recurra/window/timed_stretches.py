"""Stretches of launches, which run one by one or through the window, and are timed."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from recurra.window.gain_model import MOST, SAMPLE, GainModel
from recurra.window.task import Task
from recurra.window.wrapper import Args, Kwargs, Wrapper

RARELY = 1024  # launches between two readings of the clock, while there is no trial


@dataclass(slots=True)
class Stretch:
    """The current stretch.

    While launches run one by one and are timed, their calls are recorded: the memory that they
    access is computed after the stretch.
    """

    judgment: GainModel
    least: int = SAMPLE  # launches, if nothing is in flight
    most: int = MOST
    runs_in_order: bool = False  # launches run at once, one by one, without the window
    timed: bool = True
    recorded: bool = False  # by the executor
    direct: bool = False  # launches are neither timed nor recorded
    launched: list[tuple[Task, Hashable]] = field(default_factory=list[tuple[Task, Hashable]])
    calls: list[tuple[Wrapper, Args, Kwargs]] = field(default_factory=list[Any])
    count: int = 0
    ran: int = 0  # launches one by one, before this stretch
    since: float = field(default_factory=time.perf_counter)
    before: float = 0.0  # seconds before `pause`

    def alone(self) -> int:
        """Count the launches that ran one by one, until now."""
        return self.ran + (self.count if self.runs_in_order else 0)

    def may_end(self, *, waited: bool) -> bool:
        """Return whether the stretch may end; `waited` if nothing is in flight."""
        if not (self.timed or self.runs_in_order):
            return waited  # until failures are reported
        if self.timed:
            enough = waited or self.judgment.predicted is None
            return self.count >= (self.least if enough else self.most)
        look = waited or self.count >= RARELY
        return look and time.perf_counter() >= self.judgment.trial.until

    def end(self, *, healthy: bool) -> None:
        """Begin the next stretch, with nothing in flight; through the window unless `healthy`."""
        now = time.perf_counter()
        if self.timed and self.count >= self.least:
            kinds = list(self.launched)
            for wrapper, args, kwargs in self.calls:
                task = Task(wrapper.name) if wrapper.kind else wrapper.task(*args, **kwargs)
                kinds.append((task, kind_of(wrapper, task)))
            self.judgment.record_stretch(
                not self.runs_in_order, self.before + now - self.since, kinds, now
            )
        on, self.ran = self.judgment.next(now), self.alone()
        self.runs_in_order = healthy and not on
        self.timed = on or self.judgment.trial.examining
        self.direct = self.runs_in_order and not self.timed and not self.recorded
        self.launched.clear()
        self.calls.clear()
        self.count, self.since, self.before = 0, time.perf_counter(), 0.0

    def record_call(self, wrapper: Wrapper, args: Args, kwargs: Kwargs) -> None:
        self.calls.append((wrapper, (), {}) if wrapper.kind else (wrapper, args, kwargs))

    def pause(self) -> None:
        """Stop the clock, while nothing is launched."""
        self.before += time.perf_counter() - self.since

    def resume(self) -> None:
        """Start the clock again, after `pause`."""
        self.since = time.perf_counter()


def kind_of(wrapper: Wrapper, task: Task) -> Hashable:
    """Return the key of launches with the same expected duration."""
    return wrapper.kind or (wrapper.name, *(s.size for s in (*task.reads, *task.writes)))
