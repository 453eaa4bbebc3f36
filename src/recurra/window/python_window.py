"""The window: tasks in program order → which of them may run now.

    offer → input FIFO → [slot slot slot slot] → take → (runs) → retire
                          pending ready executing

A task enters the window when a slot is free, and is compared with all that is there; those it must
follow are its upstream set. With an empty upstream set it is ready. A task that retires leaves all
upstream sets, and its slot to the head of the FIFO (ACS, sections III-C, III-D, IV-B).

This is the twin of the native window, and its oracle: plain, and never faster than it must be. What
Ctrl-C interrupts here goes on at the next call: no call, after which it may come, stands between
changes that belong together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from recurra.window.task import Task, WindowError, is_count

LARGEST = 64  # slots: the native window's upstream sets are words of 64 bits
MOST_QUEUED = 2**31  # tasks of the input FIFO: more than fit into memory


class State(Enum):
    """The state of a task in a slot."""

    PENDING = "pending"
    READY = "ready"
    EXECUTING = "executing"


@dataclass(frozen=True)
class Slot:
    """A task in the window; `upstream` are the tickets of tasks that it waits for."""

    ticket: int
    state: State
    upstream: frozenset[int]

    def __str__(self) -> str:
        waits = f" for {', '.join(map(str, sorted(self.upstream)))}" if self.upstream else ""
        return f"{self.ticket} {self.state.value}{waits}"


class Scheduler(Protocol):
    """The interface of both windows, in Python and native. Tickets count tasks in program order."""

    def offer(self, task: Task) -> int | None:
        """Takes the next task of the program, or None if the FIFO is full: run something first."""
        ...

    def take(self) -> int | None:
        """The oldest ready task, now executing; None if none is ready."""
        ...

    def claim(self, ticket: int) -> bool:
        """Takes this very task if it is ready."""
        ...

    def retire(self, ticket: int) -> None:
        """An executing task is done. Raises WindowError for any other."""
        ...

    def slots(self) -> tuple[Slot, ...]:
        """The tasks in the window, oldest first."""
        ...

    def waiting(self) -> int:
        """The number of tasks in the FIFO."""
        ...

    def ready(self) -> int:
        """The number of tasks that `take` would give."""
        ...


class Window:
    """`size` slots (1 to 64) behind a FIFO of at most `queue` tasks."""

    def __init__(self, size: int = 32, queue: int = 256):
        check_size(size, queue)
        self.size, self.queue = size, queue
        self._fifo: deque[tuple[int, Task]] = deque()
        self._tasks: dict[int, Task] = {}  # of the window, oldest first; so are those below
        self._state: dict[int, State] = {}
        self._upstream: dict[int, set[int]] = {}
        self._next = 0
        self._last = -1  # the newest that the window has had

    def offer(self, task: Task) -> int | None:
        """Takes the next task of the program, or None if the FIFO is full: run something first."""
        if len(self._fifo) == self.queue:
            return None
        ticket = self._next
        self._next += 1
        self._fifo.append((ticket, task))
        self._fill()
        return ticket

    def take(self) -> int | None:
        """The oldest ready task, now executing; None if none is ready."""
        self._fill()  # should it have been interrupted
        for ticket, state in self._state.items():
            if state is State.READY:
                self._state[ticket] = State.EXECUTING
                return ticket
        return None

    def claim(self, ticket: int) -> bool:
        """Takes this very task if it is ready."""
        if self._state.get(ticket) is not State.READY:
            return False
        self._state[ticket] = State.EXECUTING
        return True

    def retire(self, ticket: int) -> None:
        """An executing task is done. Raises WindowError for any other."""
        if self._state.get(ticket) is not State.EXECUTING:
            raise not_executing(ticket, self._next, self.slots())
        for other, upstream in self._upstream.items():
            upstream.discard(ticket)
            if not upstream and self._state[other] is State.PENDING:
                self._state[other] = State.READY
        del self._tasks[ticket], self._state[ticket], self._upstream[ticket]
        self._fill()

    def slots(self) -> tuple[Slot, ...]:
        """The tasks in the window, oldest first."""
        return tuple(Slot(t, s, frozenset(self._upstream[t])) for t, s in self._state.items())

    def waiting(self) -> int:
        """The number of tasks in the FIFO."""
        return len(self._fifo)

    def ready(self) -> int:
        """The number of tasks that `take` would give."""
        return sum(state is State.READY for state in self._state.values())

    def __str__(self) -> str:
        head = f"window of {self.size}, {self.waiting()} waiting"
        return "\n".join([head, *(f"  {s} {self._tasks[s.ticket].name}" for s in self.slots())])

    def _fill(self) -> None:
        """FIFO → free slots, in order: all that a task may depend on is in the window or done."""
        while self._fifo and len(self._tasks) < self.size:
            ticket, task = self._fifo[0]
            if ticket > self._last:
                upstream = {t for t, other in self._tasks.items() if task.must_follow(other)}
                state = State.PENDING if upstream else State.READY
                self._tasks[ticket], self._upstream[ticket] = task, upstream
                self._state[ticket], self._last = state, ticket
            self._fifo.popleft()


def check_size(size: int, queue: int) -> None:
    """Raises WindowError for windows that cannot be."""
    if not is_count(size, LARGEST):
        raise WindowError(
            f"a window of {size!r} slots",
            facts=f"it has 1 to {LARGEST}: upstream sets are words of {LARGEST} bits",
            hint="16 and 32 are common; more slots find parallelism that lies farther apart",
        )
    if not is_count(queue, MOST_QUEUED):
        raise WindowError(
            f"an input FIFO of {queue!r} tasks",
            facts=f"it holds a whole number, 1 to {MOST_QUEUED}",
            hint="queue=256",
        )


def not_executing(ticket: int, offered: int, slots: tuple[Slot, ...]) -> WindowError:
    """A task retires that does not run: what it does instead."""
    there = {slot.ticket: slot for slot in slots}
    if ticket in there:
        now = f"it is {there[ticket].state.value}"
    elif not 0 <= ticket < offered:
        now = "it was never offered"
    elif ticket > max(there, default=-1) and there:
        now = "it waits in the FIFO"
    else:
        now = "it has retired"
    return WindowError(
        f"task {ticket} cannot retire", facts=now, hint="retire each task that take() gave, once"
    )
