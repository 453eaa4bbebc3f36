"""List scheduling: the predicted duration of tasks on several threads.

The program's thread launches tasks in order while the window has room, and runs ready ones where it
must wait; the other threads run the oldest ready task.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from enum import Enum

from recurra.window.task import Task
from recurra.window.trace import dependences


class _Ended(Enum):
    """The tasks and resources that have ended at an event."""

    LAUNCHED = "the program has launched a task"
    WORKER = "a task, on another thread"
    PROGRAM = "a task, on the program's thread"


def gain(
    tasks: Sequence[Task],
    seconds: Sequence[float],
    threads: int,
    overhead: float,
    slots: int,
    outside: Sequence[bool] = (),
) -> float:
    """Predict the speed-up of `threads` that run these tasks through a window over one in order.

    A launch costs the program `overhead` seconds, and so does every launched task. Tasks `outside`
    are the program's own work, during which it launches nothing.
    """
    if not tasks:
        return 1.0
    alone = tuple(outside) or (False,) * len(tasks)
    takes = [s if out else s + overhead for s, out in zip(seconds, alone, strict=True)]
    return sum(seconds) / _ListSchedule(tasks, takes, threads, overhead, slots, alone).end()


class _ListSchedule:
    """One schedule, event by event."""

    def __init__(
        self,
        tasks: Sequence[Task],
        takes: Sequence[float],
        threads: int,
        overhead: float,
        slots: int,
        outside: Sequence[bool],
    ):
        self._takes, self._overhead, self._outside = takes, overhead, outside
        self._idle, self._room = threads - 1, slots
        self._missing = [0] * len(tasks)
        self._after: list[list[int]] = [[] for _ in tasks]
        for k, upstream in enumerate(dependences(tasks)):
            self._missing[k] = len(upstream)
            for u in upstream:
                self._after[u].append(k)
        self._next = self._entered = 0  # tasks that the program has begun to launch; has launched
        self._busy = False  # the program
        self._ready: list[int] = []
        self._events: list[tuple[float, int, _Ended]] = []
        self._now = 0.0

    def end(self) -> float:
        """Return the time at which everything is done."""
        self._start_ready()
        while self._events:
            self._now, k, ended = heapq.heappop(self._events)
            if ended is _Ended.LAUNCHED:
                self._entered = k + 1
                self._enqueue_if_ready(k)
            else:
                self._finish(k)
            if ended is _Ended.WORKER:
                self._idle += 1
            else:
                self._busy = False
            self._start_ready()
        return self._now

    def _start_ready(self) -> None:
        while self._idle and self._ready:
            self._idle -= 1
            self._start(heapq.heappop(self._ready), _Ended.WORKER)
        if not self._busy:
            self._continue_program()

    def _continue_program(self) -> None:
        """Let the program do its next task, or a ready one while it waits."""
        k = self._next
        more = k < len(self._takes)
        if more and self._outside[k] and not self._missing[k]:
            self._entered = self._next = k + 1
            self._start(k, _Ended.PROGRAM)
        elif more and not self._outside[k] and self._room:
            self._room -= 1
            self._next, self._busy = k + 1, True
            heapq.heappush(self._events, (self._now + self._overhead, k, _Ended.LAUNCHED))
        elif self._ready:
            self._start(heapq.heappop(self._ready), _Ended.PROGRAM)

    def _start(self, index: int, end: _Ended) -> None:
        self._busy = self._busy or end is _Ended.PROGRAM
        heapq.heappush(self._events, (self._now + self._takes[index], index, end))

    def _finish(self, index: int) -> None:
        self._room += not self._outside[index]
        for d in self._after[index]:
            self._missing[d] -= 1
            self._enqueue_if_ready(d)

    def _enqueue_if_ready(self, index: int) -> None:
        if index < self._entered and not self._missing[index] and not self._outside[index]:
            heapq.heappush(self._ready, index)
