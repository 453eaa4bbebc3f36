"""Minimum cuts, beside SciPy's."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from recurra.ir.min_cut import ONE, OTHER, UNBOUNDED, Network


@pytest.mark.parametrize("seed", range(30))
def test_the_side_is_the_smallest_of_the_cheapest(seed: int) -> None:
    pick = random.Random(seed)
    nodes = [ONE, OTHER, *range(pick.choice([1, 4, 12, 40]))]
    costs: dict[tuple[int, int], int] = {}
    network = Network(unit=4)
    for _ in range(pick.randint(1, 4 * len(nodes))):
        a, b = pick.sample(range(len(nodes)), 2)
        quarters = pick.choice([0, 1, 2, 7, 40, 4000])
        costs[a, b] = costs.get((a, b), 0) + quarters
        network.edge(nodes[a], nodes[b], quarters / 4)
    rows, cols = zip(*costs, strict=True)
    shape = (len(nodes), len(nodes))
    room = csr_matrix((np.array([*costs.values()], np.int32), (rows, cols)), shape=shape)
    found = maximum_flow(room, 0, 1)
    left = (room - found.flow).toarray() > 0
    reached = breadth_first_order(csr_matrix(left), 0, return_predecessors=False)
    side, cost = network.source_side()
    assert cost == found.flow_value / 4
    assert side == {nodes[k] for k in reached}


def test_what_nothing_leads_to_is_on_the_other_side() -> None:
    network = Network()
    network.edge("a", OTHER, 3.0)
    assert network.source_side() == ({ONE}, 0.0)


def test_what_must_go_together_does() -> None:
    network = Network()
    network.edge(ONE, "a", 5.0)
    network.edge("a", "b", UNBOUNDED)
    network.edge("b", OTHER, 3.0)
    assert network.source_side() == ({ONE, "a", "b"}, 3.0)
