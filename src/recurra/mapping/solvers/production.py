"""The solver `prod`: the fastest of the default solver's last answers and the XLA-like one.

Finalists are compared on the simulator, with contention, not by reward.
"""

from __future__ import annotations

from collections.abc import Iterable

from recurra.mapping.search import Search, solver
from recurra.mapping.simulate import fastest
from recurra.mapping.solvers.default import search_by_default
from recurra.mapping.solvers.xla_like import place_like_xla
from recurra.storage.mapping_problem import Problem, Solution


@solver
def solve(search: Search) -> None:
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
    """Return the fastest of these solutions; of equals the last finalist."""

    return fastest(problem, [*reversed(list(finalists)), baseline])
