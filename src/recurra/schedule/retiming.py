"""Shifts: how many steps each statement of one loop runs late.

A dependence of lag v (v steps from producer to consumer, negative when the future is read) asks
shift(sink) >= shift(source) - v. Statements of one cycle keep one shift, so that a state and the
step that makes it stay together; the rest is placed so that the bytes held over time are least.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from recurra.ir.min_cut import ONE, OTHER, Network
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
    """The smallest shifts that hold the fewest bytes: min Σ weight · (last read - shift).

    From the smallest that are legal, what is cheaper later moves on, until nothing is; whatever
    it meets goes along (steepest descent of an L♮-convex function: Murota, 2003).
    """
    held = sorted({e.source for e in edges})
    waits: list[tuple[Hashable, Hashable, int]] = [*between]
    waits += [(group[s], (s,), 0) for s in held]
    waits += [(group[e.sink], (e.source,), -(e.high or 0)) for e in edges]
    price: dict[Hashable, float] = dict.fromkeys(reps, 0.0)
    for s in held:
        price[(s,)] = weight[s]  # (s,): the last read of s
        price[group[s]] -= weight[s]
    at = soonest(price, waits)
    assert at is not None, "a cycle needs its own future"
    while moves := _cheaper_later(price, waits, at):
        ahead = [x for x in waits if x[0] in moves and x[1] not in moves]
        room = min(at[sink] + lag - at[source] for source, sink, lag in ahead)
        at.update({x: at[x] + room for x in moves})
    base = min(at[r] for r in reps)
    return {r: at[r] - base for r in reps}


def _cheaper_later(
    price: Mapping[Hashable, float],
    waits: Sequence[tuple[Hashable, Hashable, int]],
    at: Mapping[Hashable, int],
) -> set[Hashable]:
    """The fewest that save the most bytes by moving one step on, with all that must move too."""
    network = Network()
    for x, cost in price.items():
        network.edge(ONE, x, -cost)
        network.edge(x, OTHER, cost)
    for source, sink, lag in waits:
        if at[sink] + lag == at[source]:
            network.edge(source, sink)
    side, _ = network.one_side()
    return side - {ONE}
