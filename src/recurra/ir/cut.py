"""Minimum cuts: which side of a choice costs least."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise

UNBOUNDED = 10**18


@dataclass
class Network:
    """Directed edges, with what each costs if it leads from the one side to the other.

    Costs are counted in steps of 1 / `unit`.
    """

    unit: int = 1
    left: dict[Hashable, dict[Hashable, int]] = field(
        default_factory=lambda: {ONE: dict[Hashable, int](), OTHER: dict[Hashable, int]()}
    )  # what may still flow along an edge, and back

    def edge(self, source: Hashable, sink: Hashable, cost: float = UNBOUNDED) -> None:
        """Add an edge: the cost if `source` is on the one side and `sink` on the other."""
        ahead, back = (self.left.setdefault(x, {}) for x in (source, sink))
        ahead[sink] = min(UNBOUNDED, ahead.get(sink, 0) + int(max(0.0, cost) * self.unit))
        back.setdefault(source, 0)

    def one_side(self) -> tuple[set[Hashable], float]:
        """Find the one side of the cheapest cut, the smallest that there is, and the cost.

        The cost is the most that flows from the one side to the other (Dinic, 1970).
        """
        flow = 0
        while OTHER in (level := self._levels()):
            flow += self._fill(level)
        return set(level), flow / self.unit

    def _levels(self) -> dict[Hashable, int]:
        """Count the edges to everything that can still be reached."""
        level: dict[Hashable, int] = {ONE: 0}
        todo = deque[Hashable]([ONE])
        while todo:
            x = todo.popleft()
            for y, room in self.left[x].items():
                if room and y not in level:
                    level[y] = level[x] + 1
                    todo.append(y)
        return level

    def _fill(self, level: dict[Hashable, int]) -> int:
        """Lets as much flow as shortest paths hold; returns how much."""
        flow, path = 0, list[Hashable]((ONE,))
        ways = {x: [y for y in self.left[x] if level.get(y) == k + 1] for x, k in level.items()}
        while path:
            here = path[-1]
            if here is OTHER:
                edges = list(pairwise(path))
                most = min(self.left[x][y] for x, y in edges)
                for x, y in edges:
                    self.left[x][y] -= most
                    self.left[y][x] += most
                flow += most
                del path[next(k for k, (x, y) in enumerate(edges, 1) if not self.left[x][y]) :]
            elif not ways[here]:
                path.pop()
                if path:
                    ways[path[-1]].pop()
            elif self.left[here][ways[here][-1]]:
                path.append(ways[here][-1])
            else:
                ways[here].pop()
        return flow


ONE, OTHER = object(), object()
