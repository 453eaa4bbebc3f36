"""The window keeps every order that memory asks for, and no other."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_tasks import drive, in_order, programs, random_program, tasks
from recurra.window import MEMORY, Segment, State, Task, Window, WindowError, barrier
from recurra.window.history_checker import Event, conflicts, violations
from recurra.window.task import END

A, B, C = Segment(0, 8), Segment(8, 8), Segment(4, 8)
WRITE_A, READ_A, WRITE_B = Task("write", writes=(A,)), Task("read", (A,)), Task("b", writes=(B,))


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (WRITE_A, READ_A, True),  # read after write, which the paper's Algorithm 1 omits
        (READ_A, WRITE_A, True),  # write after read
        (WRITE_A, WRITE_A, True),  # write after write
        (READ_A, READ_A, False),
        (WRITE_A, WRITE_B, False),  # neighbors
        (WRITE_B, Task("c", (C,)), True),  # a part of it
        (Task("none"), barrier("b"), False),  # touches nothing
        (READ_A, barrier("b"), True),
        (barrier("b"), READ_A, True),
        (Task("all", (MEMORY,)), READ_A, False),
        (Task("all", (MEMORY,)), WRITE_A, True),
        (Task("all", (Segment(0, 16),)), Task("empty", writes=(Segment(5, 0),)), False),
    ],
)
def test_what_must_keep_its_order(first: Task, second: Task, kept: bool) -> None:
    window = Window()
    window.offer(first)
    window.offer(second)
    assert [s.state for s in window.slots()] == [
        State.READY,
        State.PENDING if kept else State.READY,
    ]
    assert window.slots()[1].upstream == (frozenset({0}) if kept else frozenset())


@given(first=tasks, second=tasks)
def test_conflicts_are_what_bytes_say(first: Task, second: Task) -> None:
    def touched(segments: tuple[Segment, ...]) -> set[int]:
        return {k for s in segments for k in range(s.start, min(s.stop, 64))}

    shared = touched(second.reads) & touched(first.writes)
    shared |= touched(second.writes) & (touched(first.reads) | touched(first.writes))
    assert second.must_follow(first) == bool(shared)
    assert bool(conflicts([first, second])) == bool(shared)


@settings(max_examples=300)
@given(program=programs, size=st.integers(1, 64), seed=st.integers(0, 2**32))
def test_any_schedule_is_as_good_as_the_program(program: list[Task], size: int, seed: int) -> None:
    """All schedules that a window of any size allows leave the memory that the program leaves."""
    rng = random.Random(seed)
    window = Window(size, queue=rng.randint(1, 5))
    happened, memory = drive(window, program, rng.randrange)
    assert not violations(program, happened, slots=size)
    expected = in_order(program)
    assert memory.bytes == expected.bytes
    assert memory.seen == expected.seen


@given(program=programs, size=st.integers(1, 64))
def test_upstream_sets_are_exact(program: list[Task], size: int) -> None:
    """A newcomer waits for all that it must follow in the window, and for nothing else."""
    window = Window(size)
    for task in program:
        window.offer(task)
    there = program[:size]
    pairs = {(early, late) for early, late, _ in conflicts(there)}
    for slot in window.slots():
        assert slot.upstream == {e for e, late in pairs if late == slot.ticket}
    assert window.waiting() == max(0, len(program) - size)


@pytest.mark.fuzz
def test_many_schedules() -> None:
    for seed in range(20_000):
        rng = random.Random(seed)
        program, size = random_program(seed, rng.randint(1, 60)), rng.randint(1, 64)
        happened, memory = drive(Window(size, rng.randint(1, 9)), program, rng.randrange)
        assert not violations(program, happened, slots=size)
        assert memory.bytes == in_order(program).bytes


def test_a_window_of_one_is_the_program() -> None:
    program = random_program(1, 30)
    happened, _ = drive(Window(1), program, random.Random(1).randrange)
    assert [e.ticket for e in happened if e.kind == "start"] == list(range(30))
    assert [e.ticket for e in happened if e.kind == "end"] == list(range(30))


def test_a_full_fifo_takes_nothing() -> None:
    window = Window(1, queue=2)
    assert [window.offer(WRITE_A) for _ in range(4)] == [0, 1, 2, None]
    assert window.waiting() == 2
    window.retire(window.take() or 0)
    assert window.offer(WRITE_A) == 3  # the refused one got no ticket
    assert str(window) == "window of 1, 2 waiting\n  1 ready write"


def test_it_shows_who_waits_for_whom() -> None:
    window = Window(4)
    for task in (WRITE_A, WRITE_B, Task("add", (A, B), (Segment(99, 1),))):
        window.offer(task)
    assert window.take() == 0
    assert str(window).splitlines()[1:] == [
        "  0 executing write",
        "  1 ready b",
        "  2 pending for 0, 1 add",
    ]


@pytest.mark.parametrize(
    ("ticket", "says"),
    [
        (0, "it has retired"),
        (1, "it is ready"),
        (2, "it is pending"),
        (3, "it waits in the FIFO"),
        (4, "it was never offered"),
        (-1, "it was never offered"),
    ],
)
def test_only_what_runs_retires(ticket: int, says: str) -> None:
    window = Window(2)
    for task in (WRITE_A, WRITE_A, WRITE_A, WRITE_A):
        window.offer(task)
    window.retire(window.take() or 0)
    with pytest.raises(WindowError, match=says):
        window.retire(ticket)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Window(0), "a window of 0 slots"),
        (lambda: Window(65), "has 1 to 64"),
        (lambda: Window(8, queue=0), "FIFO of 0"),
        (lambda: Segment(-1, 4), "no segment"),
        (lambda: Segment(4, -1), "no segment"),
        (lambda: Segment(END, 1), "no segment"),
    ],
)
def test_what_cannot_be_is_refused(make: type, says: str) -> None:
    with pytest.raises(WindowError, match=says):
        make()


@pytest.mark.parametrize(
    ("happened", "says"),
    [
        ("s0 e0 s1 e1 s2 e2", ()),
        ("s2 e2 s0 e0 s1 e1", ()),
        ("s0 s1 e0 e1 s2 e2", ("read (1) started before write (0) had ended, though it reads",)),
        ("s1 e1 s0 e0 s2 e2", ("read (1) started before write (0)",)),
        ("s0 e0 s1 e1", ("task 2 never starts",)),
        ("s0 e0 s1 e1 s2", ("task 2 never ends",)),
        ("s0 e0 s1 e1 e2 s2", ("task 2 ends before it starts",)),
        ("s0 e0 s0 e0 s1 e1 s2 e2", ("task 0 has two starts", "task 0 has two ends")),
        ("s0 e0 s1 e1 s2 e2 s3 e3", ("task 3 is not of this program", "task 3 is not")),
    ],
)
def test_the_checker_finds(happened: str, says: tuple[str, ...]) -> None:
    program = [WRITE_A, READ_A, WRITE_B]
    log = [Event("start" if w[0] == "s" else "end", int(w[1:])) for w in happened.split()]
    found = violations(program, log)
    assert len(found) == len(says)
    assert all(found[k].startswith(text) for k, text in enumerate(says))


def test_the_checker_sees_past_the_window() -> None:
    log = [Event("start", 2), Event("end", 2)]
    log += [e for t in (0, 1) for e in (Event("start", t), Event("end", t))]
    program = [WRITE_A, READ_A, WRITE_B]
    assert not violations(program, log, slots=3)
    assert violations(program, log, slots=2) == (
        "task 2 started with 3 unfinished up to it: more than 2 slots",
    )


def test_a_forgotten_read_after_write_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's Algorithm 1, as printed, lets readers overtake writers: the checker sees it."""

    def printed(self: Task, earlier: Task) -> bool:
        touched = (*earlier.reads, *earlier.writes)
        return any(a.start < b.stop and a.stop > b.start for a in touched for b in self.writes)

    monkeypatch.setattr(Task, "must_follow", printed)
    happened, _ = drive(Window(), [WRITE_A, READ_A], lambda n: 0)
    assert violations([WRITE_A, READ_A], happened)
