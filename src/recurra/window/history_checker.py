"""The history checker: start and end times of tasks → violations of their order.

It shares no code with the schedulers, real or simulated. Memory is cut at all ends of segments, a
task's reads and writes become sets of pieces, and every pair of tasks is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from recurra.window.task import Segment, Task


@dataclass(frozen=True)
class Event:
    """The start or end of a task, numbered in program order; events are in order of time."""

    kind: Literal["start", "end"]
    ticket: int

    def __str__(self) -> str:
        return f"{self.kind} {self.ticket}"


def events(spans: Iterable[tuple[int, float, float]]) -> tuple[Event, ...]:
    """Return the events of spans (ticket, start, stop); at one instant, ends come first."""
    marks: list[tuple[float, int, Event]] = []
    for ticket, start, stop in spans:
        marks.append((start, 1, Event("start", ticket)))
        marks.append((stop, 0 if stop > start else 2, Event("end", ticket)))
    return tuple(event for _, _, event in sorted(marks, key=lambda m: m[:2]))


def violations(
    tasks: Sequence[Task], history: Sequence[Event], *, slots: int | None = None
) -> tuple[str, ...]:
    """Return violations, a line each; none if all tasks ran once and no order was broken.

    With `slots`, also check a window of that size behind a FIFO in program order: when a task
    starts, at most so many tasks are unfinished from the beginning of the program up to it.
    """
    start, end, found = _times(len(tasks), history)
    if found:
        return found
    found = [
        f"{tasks[late].name} ({late}) started before {tasks[early].name} ({early}) had ended, "
        f"though it {why}"
        for early, late, why in conflicts(tasks)
        if start[late] < end[early]
    ]
    if slots is not None:
        found += _too_far(start, end, slots)
    return tuple(found)


def conflicts(tasks: Sequence[Task]) -> list[tuple[int, int, str]]:
    """Return all pairs (earlier, later, reason) that must keep their order."""
    cuts = sorted({x for t in tasks for s in (*t.reads, *t.writes) for x in (s.start, s.stop)})
    place = {x: k for k, x in enumerate(cuts)}

    def pieces(segments: Iterable[Segment]) -> int:
        bits = 0
        for s in segments:
            low, high = place[s.start], place[s.stop]
            bits |= (1 << high) - (1 << low)
        return bits

    reads, writes = [pieces(t.reads) for t in tasks], [pieces(t.writes) for t in tasks]
    pairs: list[tuple[int, int, str]] = []
    for late in range(len(tasks)):
        for early in range(late):
            if writes[early] & reads[late]:
                pairs.append((early, late, "reads what that one writes"))
            elif reads[early] & writes[late]:
                pairs.append((early, late, "overwrites what that one reads"))
            elif writes[early] & writes[late]:
                pairs.append((early, late, "overwrites what that one writes"))
    return pairs


def _times(
    count: int, history: Sequence[Event]
) -> tuple[dict[int, int], dict[int, int], tuple[str, ...]]:
    """Return positions of starts and ends, and violations by single tasks."""
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    found: list[str] = []
    for at, event in enumerate(history):
        if not 0 <= event.ticket < count:
            found.append(f"task {event.ticket} is not of this program, which has {count}")
        elif event.ticket in (start if event.kind == "start" else end):
            found.append(f"task {event.ticket} has two {event.kind}s")
        elif event.kind == "end" and event.ticket not in start:
            found.append(f"task {event.ticket} ends before it starts")
        (start if event.kind == "start" else end).setdefault(event.ticket, at)
    found += [f"task {t} never starts" for t in range(count) if t not in start]
    found += [f"task {t} never ends" for t in range(count) if t in start and t not in end]
    return start, end, tuple(found)


def _too_far(start: dict[int, int], end: dict[int, int], slots: int) -> list[str]:
    counts = {t: sum(end[u] > at for u in range(t + 1)) for t, at in sorted(start.items())}
    return [
        f"task {t} started with {unfinished} unfinished up to it: more than {slots} slots"
        for t, unfinished in counts.items()
        if unfinished > slots
    ]
