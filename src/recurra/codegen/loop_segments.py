"""Segments: a loop whose statements start and end at different times, as loops without conditions.

act at t, learn at t-4   →   0..3: act | 4..T-1: act, learn | T..T+3: learn
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from recurra.codegen.array_machine import LoopTime
from recurra.ir.statement import StatementGraph
from recurra.ops.control import Call
from recurra.polyhedral.extent import longest, varies
from recurra.schedule.tree import Item, Loop, members

Time = TypeVar("Time", bound=LoopTime, covariant=True)


@dataclass(frozen=True)
class LoopSegment(Generic[Time]):
    """The times lo..hi-1 of a loop, at which exactly `active` run; in a chunk, run-time values."""

    lo: Time
    hi: Time
    active: frozenset[str]


def sample_steps(lo: int, hi: int) -> Sequence[int]:
    """The first and the last steps of a loop: steps between hold as much memory as their neighbors.

    Even and odd steps alternate, as they do in the whole loop.
    """
    last = 2 + (hi - lo + 1) % 2
    return range(lo, hi) if hi - lo <= 3 + last else (*range(lo, lo + 3), *range(hi - last, hi))


def calls_host(graph: StatementGraph, it: Item) -> bool:
    """Does an item call a host function?"""
    return any(isinstance(graph[s].op, Call) for s in members((it,)))


def times(
    graph: StatementGraph, loop: Loop, statement: str, sizes: Mapping[str, int]
) -> tuple[int, int]:
    """The first time of a statement in a loop, and one past its last."""
    found = loop.times(statement, graph[statement].domain[loop.dim], sizes)
    return found.start, found.stop


def open_ends(
    graph: StatementGraph, loop: Loop, active: frozenset[str], sizes: Mapping[str, int]
) -> str | None:
    """A statement whose range, that of the loop, depends on dims around it; None if none does."""
    found = [s for s in members(loop.body) if s in active]
    open_ = [s for s in found if varies(graph[s].domain[loop.dim], sizes)]
    ranges = {graph[s].domain[loop.dim] for s in found}
    assert not open_ or (len(ranges) == 1 and not any(loop.shift[s] for s in found)), (
        f"the loop over {loop.dim} has statements of different ranges: {', '.join(found)}"
    )
    return open_[0] if open_ else None


def trips(graph: StatementGraph, loop: Loop, sizes: Mapping[str, int]) -> float:
    """The number of steps of a loop; half of the most if it depends on dims around it."""
    every = frozenset(members(loop.body))
    s = open_ends(graph, loop, every, sizes)
    if s is not None:
        return longest(graph[s].domain, loop.dim, sizes) / 2
    return sum(x.hi - x.lo for x in segments(graph, loop, every, sizes))


def spans_of(
    graph: StatementGraph, loop: Loop, active: Collection[str], sizes: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The first time of each statement that has a point in the loop, and one past its last."""
    found = {s: times(graph, loop, s, sizes) for s in members(loop.body) if s in active}
    return {s: (lo, hi) for s, (lo, hi) in found.items() if lo < hi}


def segments(
    graph: StatementGraph, loop: Loop, active: frozenset[str], sizes: Mapping[str, int]
) -> list[LoopSegment[int]]:
    """Cut a loop into consecutive segments with a fixed set of statements, none of them empty.

    A predicated statement belongs to every segment of the others in which it has a step.
    """
    spans = spans_of(graph, loop, active, sizes)
    cuts = sorted({x for s, span in spans.items() if s not in loop.predicated for x in span})
    if not cuts or any(lo < cuts[0] or cuts[-1] < hi for lo, hi in spans.values()):
        cuts = sorted({x for span in spans.values() for x in span})
    out: list[LoopSegment[int]] = []
    for a, b in pairwise(cuts):
        on = frozenset(s for s, (lo, hi) in spans.items() if lo < b and a < hi)
        if on:
            out.append(LoopSegment(a, b, on))
    return out
