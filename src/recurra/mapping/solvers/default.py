"""The default solver: evolution of a priority, then large-neighborhood search from its placement.

In a small program this climb converges in less than the budget; then it is repeated from other
starting points. The solver `prod` compares the last answers with the XLA-like one on the simulator.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from recurra.mapping.search import Search
from recurra.mapping.simulate import fastest
from recurra.mapping.solvers.lns import ruin_and_recreate
from recurra.mapping.solvers.one_pass import place_by_keys, place_like_xla
from recurra.mapping.solvers.priority import evolve
from recurra.storage.mapping_problem import Problem, Solution

EVOLUTION = 0.5  # the largest share of a climb's time for evolution
FIRST, EACH = 0.25, 5e-4  # CPU seconds of evolution, and more for each buffer
CLIMB, LONGER = 1.0, 5e-3  # CPU seconds of a climb, and more for each buffer
MOST = 8  # the most climbs; with more time, each takes longer
GLANCE = 0.5  # CPU seconds of the first climb of either kind, if others follow


def search_by_default(search: Search) -> None:
    """Use the whole budget; of equally good answers, take the fastest on the simulator.

    The answer is never worse than the simple keys.
    """
    key = place_by_keys(search)
    count = climb_count(len(search.flat.size), search.seconds)
    for k in range(count):
        begun = search.spent / search.seconds
        until = begun + (1 - begun) / (count - k)
        if k < 2 < count:
            until = min(until, begun + GLANCE / search.seconds)
        if k % 2:
            ruin_and_recreate(search, key, np.log(np.maximum(key, 1e-30)), until)
        else:
            _evolve_first(search, begun, until)
    alike = [x for x in search.finalists if x.reward(search.problem) == search.reward]
    if len(alike) > 1:
        search.solution = fastest(search.problem, reversed(alike))


def climb_count(buffers: int, seconds: float) -> int:
    """Return the number of climbs in so many CPU seconds.

    Every other one begins from the best of the simple keys.
    """
    return max(1, min(MOST, round(seconds / (CLIMB + LONGER * buffers))))


def _evolve_first(search: Search, begun: float, until: float) -> None:
    enough = (FIRST + EACH * len(search.flat.size)) / search.seconds
    priority = evolve(search, begun + min(EVOLUTION * (until - begun), enough))
    spread = max(1e-9, float(priority.std()))
    ruin_and_recreate(search, priority, priority / spread, until)


def search_for_production(search: Search) -> None:
    """Search by the default solver; the answer is never slower than XLA's, simulated."""
    place_like_xla(search)
    baseline = search.solution
    try:
        search_by_default(search)
    finally:
        search.solution = fastest_finalist(search.problem, search.finalists, baseline)


def fastest_finalist(
    problem: Problem, finalists: Iterable[Solution], baseline: Solution
) -> Solution:
    """Return the fastest of these solutions, with contention; of equals the last finalist."""
    return fastest(problem, [*reversed(list(finalists)), baseline])
