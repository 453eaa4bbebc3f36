"""Random programs of tasks on a small memory, and what running them does to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from hypothesis import strategies as st

from recurra.window.history_checker import Event
from recurra.window.python_window import Scheduler
from recurra.window.task import MEMORY, Segment, Task, barrier

BYTES = 48

# Small numbers collide: empty, touching, nested and equal segments all occur.
segments = st.builds(Segment, st.integers(0, 36), st.integers(0, 12))
lists = st.lists(segments, max_size=3).map(tuple)
tasks = st.one_of(
    *[st.builds(Task, st.just("k"), lists, lists)] * 7,
    st.just(barrier("b")),
    st.just(Task("all", reads=(MEMORY,))),
)
programs = st.lists(tasks, max_size=40)


def random_program(seed: int, length: int, wide: bool = False) -> list[Task]:
    """As `programs`, from a seed: for long searches and for what runs in other processes."""
    rng = random.Random(seed)

    def some(most: int) -> tuple[Segment, ...]:
        return tuple(
            Segment(rng.randrange(37), rng.randrange(13)) for _ in range(rng.randint(0, most))
        )

    most = 20 if wide else 3
    return [
        barrier("b") if rng.random() < 0.03 else Task("k", some(most), some(2))
        for _ in range(length)
    ]


class Memory:
    """Bytes that remember everything: each holds a hash of the task that wrote it and what that
    read."""

    def __init__(self) -> None:
        self.bytes = [0] * BYTES
        self.seen: dict[int, int] = {}

    def read(self, ticket: int, task: Task) -> None:
        self.seen[ticket] = hash(tuple(self.bytes[k] for k in self._at(task.reads)))

    def write(self, ticket: int, task: Task) -> None:
        for k in self._at(task.writes):
            self.bytes[k] = hash((ticket, self.seen[ticket], k))

    def _at(self, touched: Iterable[Segment]) -> list[int]:
        return [k for s in touched for k in range(s.start, min(s.stop, BYTES))]


def in_order(program: Sequence[Task]) -> Memory:
    """The program as it is written."""
    memory = Memory()
    for ticket, task in enumerate(program):
        memory.read(ticket, task)
        memory.write(ticket, task)
    return memory


def drive(
    window: Scheduler,
    program: Sequence[Task],
    choose: Callable[[int], int],
    before: Callable[[], object] = lambda: None,
) -> tuple[list[Event], Memory]:
    """Runs a program through a window, always at one of the events that could be next.

    A task reads when it starts and writes when it ends: the worst case for its neighbors.
    `choose(n)` is one of 0..n-1; `before` is called before every event.
    """
    happened: list[Event] = []
    memory = Memory()
    running: list[int] = []
    offered = 0
    stuck = False
    while offered < len(program) or running or window.slots():
        before()
        free = any(slot.state.value == "ready" for slot in window.slots())
        moves = ["offer"] * (offered < len(program) and not stuck)
        moves += ["take"] * (2 * free) + ["retire"] * bool(running)
        assert moves, "nothing can happen: a deadlock"
        move = moves[choose(len(moves))]
        if move == "offer":
            ticket = window.offer(program[offered])
            stuck = ticket is None
            assert ticket in (None, offered)
            offered += ticket is not None
        elif move == "take":
            ready = [slot.ticket for slot in window.slots() if slot.state.value == "ready"]
            asked = window.slots()[choose(len(window.slots()))].ticket
            if choose(3):
                ticket = window.take()
                assert ticket == ready[0]  # the oldest
            else:
                assert window.claim(asked) == (asked in ready)
                ticket = asked if asked in ready else window.take()
            assert ticket is not None
            running.append(ticket)
            happened.append(Event("start", ticket))
            memory.read(ticket, program[ticket])
        else:
            ticket = running.pop(choose(len(running)))
            memory.write(ticket, program[ticket])
            happened.append(Event("end", ticket))
            window.retire(ticket)
            stuck = False
    return happened, memory
