"""Segments: a loop whose statements start and end at different times, as loops without conditions.

act at t, learn at t-4   →   0..3: act | 4..T-1: act, learn | T..T+3: learn
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph
from recurra.schedule.tree import Exec, Item, Loop, domain_of


@dataclass(frozen=True)
class Segment:
    """Times lo..hi-1 of a loop, in which exactly `active` run."""

    lo: int
    hi: int
    active: frozenset[str]


def members(items: tuple[Item, ...]) -> list[str]:
    """Every statement below."""
    out: list[str] = []
    for it in items:
        out += [it.name] if isinstance(it, Exec) else members(it.body)
    return out


def times(graph: Graph, loop: Loop, statement: str, sizes: Mapping[str, int]) -> tuple[int, int]:
    """First and one past the last time of a statement in a loop: point = step · (time - shift)."""
    r = domain_of(graph, statement)[loop.dim]
    lo, hi = evaluate(r.lo, sizes), evaluate(r.hi, sizes)
    s = loop.shift[statement]
    return (lo + s, hi + s) if loop.step > 0 else (1 - hi + s, 1 - lo + s)


def segments(
    graph: Graph, loop: Loop, active: frozenset[str], sizes: Mapping[str, int]
) -> list[Segment]:
    """The loop as consecutive stretches with a fixed set of statements, none of them empty."""
    spans = {s: times(graph, loop, s, sizes) for s in members(loop.body) if s in active}
    cuts = sorted({x for span in spans.values() for x in span})
    out: list[Segment] = []
    for a, b in pairwise(cuts):
        on = frozenset(s for s, (lo, hi) in spans.items() if lo <= a and b <= hi)
        if on:
            out.append(Segment(a, b, on))
    return out
