"""Shifts: how many steps each statement of one loop runs late.

A dependence of lag v (v steps from producer to consumer, negative when the future is read) asks
shift(sink) >= shift(source) - v. Statements of one cycle keep one shift, so that a state and the
step that makes it stay together; the rest is placed so that the bytes held over time are least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from recurra.ir.order import components, soonest
from recurra.polyhedral.dependence_distance import Lag


class Edge(NamedTuple):
    """sink - source in steps is at least `low`; at most `high` (None: unbounded)."""

    source: str
    sink: str
    low: int
    high: int | None


def retime(
    nodes: Sequence[str], lags: Sequence[tuple[str, str, Lag]], weight: Mapping[str, float]
) -> dict[str, int]:
    """The shifts, the smallest 0, of a loop that is legal, from lags of (source, sink)."""
    edges = [Edge(source, sink, x.low, x.high) for source, sink, x in lags if x.low is not None]
    group = _groups(nodes, edges)
    reps = [n for n in nodes if group[n] == n]
    ends = ((group[e.source], group[e.sink], e.low) for e in edges)
    between = [(source, sink, low) for source, sink, low in ends if source != sink]
    least = soonest(reps, between)
    assert least is not None, "a cycle needs its own future"
    if not any(least.values()):
        return dict.fromkeys(nodes, 0)
    chosen = _cheapest(reps, between, edges, group, weight)
    return {n: chosen[group[n]] for n in nodes}


def _groups(nodes: Sequence[str], edges: Sequence[Edge]) -> dict[str, str]:
    """Statement -> representative; a cycle is one group where one shift serves all of it."""
    ahead: dict[str, list[str]] = {n: [] for n in nodes}
    for e in edges:
        ahead[e.source].append(e.sink)
    first = {n: part[0] for part in components(nodes, ahead.__getitem__) for n in part}
    apart = {first[e.source] for e in edges if e.low < 0 and first[e.source] == first[e.sink]}
    return {n: n if first[n] in apart else first[n] for n in nodes}


def _cheapest(
    reps: Sequence[str],
    between: Sequence[tuple[str, str, int]],
    edges: Sequence[Edge],
    group: Mapping[str, str],
    weight: Mapping[str, float],
) -> dict[str, int]:
    """Shifts that hold the fewest bytes: min Σ weight · lifetime, a network, so integral."""
    from scipy.optimize import linprog

    place = {r: k for k, r in enumerate(reps)}
    held = sorted({e.source for e in edges})
    life = {s: len(reps) + k for k, s in enumerate(held)}
    size = len(reps) + len(held)
    rows: list[np.ndarray] = []
    ends: list[float] = []
    for source, sink, low in between:  # shift(source) - shift(sink) <= low
        r = np.zeros(size)
        r[place[source]] += 1
        r[place[sink]] -= 1
        rows.append(r)
        ends.append(low)
    for e in edges:  # life(source) >= shift(sink) - shift(source) + high
        r = np.zeros(size)
        r[place[group[e.sink]]] += 1
        r[place[group[e.source]]] -= 1
        r[life[e.source]] -= 1
        rows.append(r)
        ends.append(-float(e.high or 0))
    cost = np.zeros(size)
    cost[: len(reps)] = 1e-6  # ties: early
    for s in held:
        cost[life[s]] = weight[s]
    found = linprog(
        cost, A_ub=np.array(rows), b_ub=np.array(ends), bounds=[(0, None)] * size, method="highs"
    )
    assert found.status == 0, found.message
    shift = {r: round(float(found.x[place[r]])) for r in reps}
    base = min(shift.values())
    return {r: s - base for r, s in shift.items()}
