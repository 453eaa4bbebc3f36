"""The window in Python: tasks in program order → the tasks that may run now.

    offer → input FIFO → [slot slot slot slot] → take → (runs) → retire
                          pending ready executing

A task enters the window when a slot is free, and is compared with all tasks there; those it must
follow are its upstream set. A task with an empty upstream set is ready. A task that retires leaves
all upstream sets, and its slot to the head of the FIFO (ACS, sections III-C, III-D, IV-B).

This is the oracle of the native window, simple rather than fast. Work that Ctrl-C interrupts is
completed by the next call: Ctrl-C comes after calls only, and none stands between changes that
belong together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from recurra.window.task import Task, WindowError, is_count

LARGEST = 64  # slots: upstream sets of the native window are words of 64 bits
MOST_QUEUED = 2**31  # tasks of the input FIFO


class State(Enum):
    """The state of a task in a slot."""

    PENDING = "pending"
    READY = "ready"
    EXECUTING = "executing"


@dataclass(frozen=True)
class Slot:
    """A task in the window; `upstream` has the tickets of the tasks that it waits for."""

    ticket: int
    state: State
    upstream: frozenset[int]

    def __str__(self) -> str:
        waits = f" for {', '.join(map(str, sorted(self.upstream)))}" if self.upstream else ""
        return f"{self.ticket} {self.state.value}{waits}"


class Scheduler(Protocol):
    """The interface of both windows. Tickets number tasks in program order."""

    def offer(self, task: Task, /) -> int | None:
        """Append the next task of the program; None if the FIFO is full: run a task first."""
        ...

    def take(self) -> int | None:
        """Start executing the oldest ready task; None if none is ready."""
        ...

    def claim(self, ticket: int, /) -> bool:
        """Start executing a task if it is ready, and return whether it was."""
        ...

    def retire(self, ticket: int, /) -> None:
        """Remove an executing task that is done; raise WindowError for any other."""
        ...

    def slots(self) -> tuple[Slot, ...]:
        """Return the tasks in the window, oldest first."""
        ...

    def waiting(self) -> int:
        """Count the tasks in the FIFO."""
        ...

    def ready(self) -> int:
        """Count the ready tasks."""
        ...


class Window:
    """A Scheduler of `size` slots (1 to 64) behind a FIFO of at most `queue` tasks."""

    def __init__(self, size: int = 32, queue: int = 256):
        check_size(size, queue)
        self.size, self.queue = size, queue
        self._fifo: deque[tuple[int, Task]] = deque()
        self._tasks: dict[int, Task] = {}  # of the window, oldest first; so are those below
        self._state: dict[int, State] = {}
        self._upstream: dict[int, set[int]] = {}
        self._next = 0
        self._last = -1  # the newest task that has entered the window

    def offer(self, task: Task) -> int | None:
        if len(self._fifo) == self.queue:
            return None
        ticket = self._next
        self._next += 1
        self._fifo.append((ticket, task))
        self._fill()
        return ticket

    def take(self) -> int | None:
        self._fill()  # in case that it was interrupted
        for ticket, state in self._state.items():
            if state is State.READY:
                self._state[ticket] = State.EXECUTING
                return ticket
        return None

    def claim(self, ticket: int) -> bool:
        if self._state.get(ticket) is not State.READY:
            return False
        self._state[ticket] = State.EXECUTING
        return True

    def retire(self, ticket: int) -> None:
        if self._state.get(ticket) is not State.EXECUTING:
            raise not_executing(ticket, self._next, self.slots())
        for other, upstream in self._upstream.items():
            upstream.discard(ticket)
            if not upstream and self._state[other] is State.PENDING:
                self._state[other] = State.READY
        del self._tasks[ticket], self._state[ticket], self._upstream[ticket]
        self._fill()

    def slots(self) -> tuple[Slot, ...]:
        return tuple(Slot(t, s, frozenset(self._upstream[t])) for t, s in self._state.items())

    def waiting(self) -> int:
        return len(self._fifo)

    def ready(self) -> int:
        return sum(state is State.READY for state in self._state.values())

    def __str__(self) -> str:
        head = f"window of {self.size}, {self.waiting()} waiting"
        return "\n".join([head, *(f"  {s} {self._tasks[s.ticket].name}" for s in self.slots())])

    def _fill(self) -> None:
        """Move tasks from the FIFO to free slots, in order, so that all earlier tasks are known."""
        while self._fifo and len(self._tasks) < self.size:
            ticket, task = self._fifo[0]
            if ticket > self._last:
                upstream = {t for t, other in self._tasks.items() if task.must_follow(other)}
                state = State.PENDING if upstream else State.READY
                self._tasks[ticket], self._upstream[ticket] = task, upstream
                self._state[ticket], self._last = state, ticket
            self._fifo.popleft()


def check_size(size: int, queue: int) -> None:
    """Raise WindowError for impossible sizes."""
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
    """Return the error for a task that retires without executing, with its actual state."""
    states = {slot.ticket: slot.state for slot in slots}
    if ticket in states:
        facts = f"it is {states[ticket].value}"
    elif not 0 <= ticket < offered:
        facts = "it was never offered"
    elif ticket > max(states, default=-1) and states:
        facts = "it waits in the FIFO"
    else:
        facts = "it has retired"
    return WindowError(
        f"task {ticket} cannot retire", facts=facts, hint="retire each task that take() gave, once"
    )
