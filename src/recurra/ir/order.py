"""Graph algorithms on dependences: strongly connected components, orders, smallest shifts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

N = TypeVar("N")


def components(nodes: Iterable[N], successors: Callable[[N], Iterable[N]]) -> list[list[N]]:
    """The strongly connected components (Tarjan, 1972), each after all components it reaches."""
    index: dict[N, int] = {}
    low: dict[N, int] = {}
    stack: list[N] = []
    on: set[N] = set()
    out: list[list[N]] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(successors(root)))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while work:
            n, rest = work[-1]
            for m in rest:
                if m not in index:
                    index[m] = low[m] = len(index)
                    stack.append(m)
                    on.add(m)
                    work.append((m, iter(successors(m))))
                    break
                if m in on:
                    low[n] = min(low[n], index[m])
            else:
                work.pop()
                if work:
                    up = work[-1][0]
                    low[up] = min(low[up], low[n])
                if low[n] == index[n]:
                    out.append(_unwind(stack, on, n))
    return out


def _unwind(stack: list[N], on: set[N], root: N) -> list[N]:
    part: list[N] = []
    while True:
        m = stack.pop()
        on.discard(m)
        part.append(m)
        if m == root:
            return part[::-1]


def postorder(nodes: Iterable[N], before: Callable[[N], Iterable[N]]) -> Iterator[N]:
    """Yield `nodes` and all their predecessors, each after its own predecessors.

    Edges that close a cycle are ignored.
    """
    visited: set[N] = set()
    for root in nodes:
        path = [] if root in visited else [(root, iter(before(root)))]
        visited.add(root)
        while path:
            n, rest = path[-1]
            following = next((m for m in rest if m not in visited), None)
            if following is None:
                yield n
                path.pop()
            else:
                visited.add(following)
                path.append((following, iter(before(following))))


def topological(nodes: Sequence[N], before: Callable[[N], Iterable[N]]) -> list[N]:
    """Sort `nodes` so that all of `before(n)` precede n; nodes without constraint keep their order.

    There must be no cycle.
    """
    place = {n: k for k, n in enumerate(nodes)}
    parts = components(
        nodes, lambda n: sorted((m for m in before(n) if m in place), key=place.__getitem__)
    )
    for p in parts:
        assert len(p) == 1, f"a cycle: {p}"
    return [p[0] for p in parts]


def earliest_times(nodes: Iterable[N], waits: Sequence[tuple[N, N, int]]) -> dict[N, int] | None:
    """The smallest shifts of nodes, in steps; None if a cycle reads its own future.

    In each (source, sink, lag), the sink reads the value from `lag` steps before, so that its shift
    is at least that of the source less the lag (Bellman and Ford).
    """
    shift = dict.fromkeys(nodes, 0)
    for _ in range(len(shift) + 1):
        moved = False
        for source, sink, lag in waits:
            least = shift[source] - lag
            if least > shift[sink]:
                shift[sink], moved = least, True
        if not moved:
            return shift
    return None
