"""The history checker: what ran when → was it allowed? Of every scheduler, real or simulated.

It shares no code with them. Memory is cut at all ends of segments, a task's reads and writes become
sets of pieces, and every pair of tasks is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from recurra.window.task import Segment, Task


@dataclass(frozen=True)
class Event:
    """A task of the program (by its place in it) starts or ends; events stand in order of time."""

    kind: Literal["start", "end"]
    ticket: int

    def __str__(self) -> str:
        return f"{self.kind} {self.ticket}"


def events(spans: Iterable[tuple[int, float, float]]) -> tuple[Event, ...]:
    """(ticket, start, stop) in any unit of time → events; what ends at an instant ends first."""
    marks: list[tuple[float, int, Event]] = []
    for ticket, start, stop in spans:
        marks.append((start, 1, Event("start", ticket)))
        marks.append((stop, 0 if stop > start else 2, Event("end", ticket)))
    return tuple(event for _, _, event in sorted(marks, key=lambda m: m[:2]))


def violations(
    tasks: Sequence[Task], happened: Sequence[Event], *, slots: int | None = None
) -> tuple[str, ...]:
    """Find violations, a line each; none if all tasks ran once and no order was broken.

    With `slots`, also: at most that many tasks of the program are unfinished from its beginning to
    any task that starts, which is what a window of that size and a FIFO in program order mean.
    """
    start, end, found = _when(len(tasks), happened)
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
    """All pairs (earlier, later, why) that must keep their order."""
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


def _when(
    count: int, happened: Sequence[Event]
) -> tuple[dict[int, int], dict[int, int], tuple[str, ...]]:
    """Positions of starts and ends, and what is wrong with them taken alone."""
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    found: list[str] = []
    for at, event in enumerate(happened):
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
    found: list[str] = []
    for ticket, at in sorted(start.items()):
        unfinished = sum(end[t] > at for t in range(ticket + 1))
        if unfinished > slots:
            found.append(
                f"task {ticket} started with {unfinished} unfinished up to it: "
                f"more than {slots} slots"
            )
    return found
