"""Minimum cuts: which side of a choice costs least."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

UNBOUNDED = 10**9


@dataclass
class Network:
    """Directed edges, with what each costs if it leads from the one side to the other.

    Costs are counted in steps of 1 / `unit`.
    """

    unit: int = 1
    place: dict[Hashable, int] = field(default_factory=lambda: {ONE: 0, OTHER: 1})
    edges: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def edge(self, source: Hashable, sink: Hashable, cost: float = UNBOUNDED) -> None:
        """What it costs if `source` is on the one side and `sink` on the other."""
        for x in (source, sink):
            self.place.setdefault(x, len(self.place))
        ends = self.place[source], self.place[sink]
        more = self.edges.get(ends, 0) + max(0.0, cost) * self.unit
        self.edges[ends] = int(min(UNBOUNDED, more))

    def one_side(self) -> tuple[set[Hashable], float]:
        """What is on the one side of the cheapest cut, as little of it as can be; and its cost."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        size = len(self.place)
        rows, cols = zip(*self.edges, strict=True)
        capacities = np.array(list(self.edges.values()), dtype=np.int32)
        network = csr_matrix((capacities, (rows, cols)), shape=(size, size))
        found = maximum_flow(network, 0, 1)
        residual = network - found.flow
        residual.data = (residual.data > 0).astype(np.int32)
        residual.eliminate_zeros()
        side = set(breadth_first_order(residual, 0, return_predecessors=False).tolist())
        return {x for x, k in self.place.items() if k in side}, found.flow_value / self.unit


ONE, OTHER = object(), object()
