"""Retiming: choose the shift of each statement in a loop, the number of steps that it runs late.

A dependence of lag v (v steps from producer to consumer, negative if the future is read) requires
shift(sink) >= shift(source) - v. Statements of one cycle keep one shift, so that a state stays with
the step that computes it; the others are shifted so that the bytes held over time are least.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from recurra.ir.min_cut import ONE, OTHER, Network
from recurra.ir.order import components, earliest_times
from recurra.polyhedral.dependence_distance import Lag


class Edge(NamedTuple):
    """The steps from source to sink: at least `low`, at most `high` (None: unbounded)."""

    source: str
    sink: str
    low: int
    high: int | None


def retime(
    nodes: Sequence[str], lags: Sequence[tuple[str, str, Lag]], weight: Mapping[str, float]
) -> dict[str, int]:
    """Return the shifts, the smallest 0, of a legal loop with these lags (source, sink, lag)."""
    edges = [Edge(source, sink, x.low, x.high) for source, sink, x in lags if x.low is not None]
    group = _groups(nodes, edges)
    reps = [n for n in nodes if group[n] == n]
    ends = ((group[e.source], group[e.sink], e.low) for e in edges)
    between = [(source, sink, low) for source, sink, low in ends if source != sink]
    least = earliest_times(reps, between)
    assert least is not None, "a cycle needs its own future"
    if not any(least.values()):
        return dict.fromkeys(nodes, 0)
    shift = _cheapest(reps, between, edges, group, weight)
    return {n: shift[group[n]] for n in nodes}


def _groups(nodes: Sequence[str], edges: Sequence[Edge]) -> dict[str, str]:
    """Statement -> representative; a cycle is one group if one shift is legal for all of it."""
    ahead: dict[str, list[str]] = {n: [] for n in nodes}
    for e in edges:
        ahead[e.source].append(e.sink)
    first = {n: part[0] for part in components(nodes, ahead.__getitem__) for n in part}
    split = {first[e.source] for e in edges if e.low < 0 and first[e.source] == first[e.sink]}
    return {n: n if first[n] in split else first[n] for n in nodes}


def _cheapest(
    reps: Sequence[str],
    between: Sequence[tuple[str, str, int]],
    edges: Sequence[Edge],
    group: Mapping[str, str],
    weight: Mapping[str, float],
) -> dict[str, int]:
    """The smallest shifts that hold the fewest bytes: min Σ weight · (last read - shift).

    Start from the smallest legal shifts, and increase the sets of shifts that save bytes until none
    does (steepest descent of an L♮-convex function: Murota, 2003).
    """
    held = sorted({e.source for e in edges})
    waits: list[tuple[Hashable, Hashable, int]] = [*between]
    waits += [(group[s], (s,), 0) for s in held]
    waits += [(group[e.sink], (e.source,), -(e.high or 0)) for e in edges]
    price: dict[Hashable, float] = dict.fromkeys(reps, 0.0)
    for s in held:
        price[(s,)] = weight[s]  # (s,): the last read of s
        price[group[s]] -= weight[s]
    at = earliest_times(price, waits)
    assert at is not None, "a cycle needs its own future"
    while moves := _cheaper_later(price, waits, at):
        ahead = [x for x in waits if x[0] in moves and x[1] not in moves]
        slack = min(at[sink] + lag - at[source] for source, sink, lag in ahead)
        at.update({x: at[x] + slack for x in moves})
    base = min(at[r] for r in reps)
    return {r: at[r] - base for r in reps}


def _cheaper_later(
    price: Mapping[Hashable, float],
    waits: Sequence[tuple[Hashable, Hashable, int]],
    at: Mapping[Hashable, int],
) -> set[Hashable]:
    """The smallest set whose increase by one step is legal and saves the most bytes."""
    network = Network()
    for x, cost in price.items():
        network.edge(ONE, x, -cost)
        network.edge(x, OTHER, cost)
    for source, sink, lag in waits:
        if at[sink] + lag == at[source]:
            network.edge(source, sink)
    side, _ = network.source_side()
    return side - {ONE}
