"""Minimum cuts of flow networks: the cheapest way to divide choices between two sides."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise

UNBOUNDED = 10**18


@dataclass
class Network:
    """A flow network: directed edges between ONE and OTHER, each with the cost of cutting it.

    Costs are rounded down to multiples of 1 / `unit`.
    """

    unit: int = 1
    residual: dict[Hashable, dict[Hashable, int]] = field(
        default_factory=lambda: {ONE: dict[Hashable, int](), OTHER: dict[Hashable, int]()}
    )  # the capacity left along each edge, and back

    def edge(self, source: Hashable, sink: Hashable, cost: float = UNBOUNDED) -> None:
        """Add the cost of having `source` on the side of ONE and `sink` on the side of OTHER."""
        forward, backward = (self.residual.setdefault(x, {}) for x in (source, sink))
        forward[sink] = min(UNBOUNDED, forward.get(sink, 0) + int(max(0.0, cost) * self.unit))
        backward.setdefault(source, 0)

    def source_side(self) -> tuple[set[Hashable], float]:
        """Return the smallest ONE side of a minimum cut, and the cost of the cut.

        The cost is the maximum flow from ONE to OTHER (Dinic, 1970).
        """
        flow = 0
        while OTHER in (level := self._levels()):
            flow += self._fill(level)
        return set(level), flow / self.unit

    def _levels(self) -> dict[Hashable, int]:
        """The distance of each reachable node from ONE, in edges with capacity left."""
        level: dict[Hashable, int] = {ONE: 0}
        todo = deque[Hashable]([ONE])
        while todo:
            x = todo.popleft()
            for y, capacity in self.residual[x].items():
                if capacity and y not in level:
                    level[y] = level[x] + 1
                    todo.append(y)
        return level

    def _fill(self, level: dict[Hashable, int]) -> int:
        """Saturate the shortest paths (a blocking flow) and return the flow added."""
        flow, path = 0, list[Hashable]((ONE,))
        ways = {x: [y for y in self.residual[x] if level.get(y) == k + 1] for x, k in level.items()}
        while path:
            here = path[-1]
            if here is OTHER:
                edges = list(pairwise(path))
                most = min(self.residual[x][y] for x, y in edges)
                for x, y in edges:
                    self.residual[x][y] -= most
                    self.residual[y][x] += most
                flow += most
                full = next(k for k, (x, y) in enumerate(edges, 1) if not self.residual[x][y])
                del path[full:]
            elif not ways[here]:
                path.pop()
                if path:
                    ways[path[-1]].pop()
            elif self.residual[here][ways[here][-1]]:
                path.append(ways[here][-1])
            else:
                ways[here].pop()
        return flow


ONE, OTHER = object(), object()
