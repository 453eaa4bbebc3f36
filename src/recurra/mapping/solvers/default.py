"""The default: evolution of a priority, then large-neighbourhood search from what it found."""

from __future__ import annotations

from recurra.mapping.search import Search, solver
from recurra.mapping.solvers.greedy import place_by_keys
from recurra.mapping.solvers.lns import ruin_and_recreate
from recurra.mapping.solvers.priority import evolve

EVOLUTION = 0.5  # of the time, at most
FIRST, EACH = 0.25, 5e-4  # CPU seconds of it, and for each buffer: as many placements for all


@solver
def solve(search: Search) -> None:
    """Never worse than the simple keys."""
    search_by_default(search)


def search_by_default(search: Search) -> None:
    """Uses the whole budget."""
    place_by_keys(search)
    enough = FIRST + EACH * len(search.flat.size)
    priority = evolve(search, min(EVOLUTION, enough / search.seconds))
    ruin_and_recreate(search, priority, priority / max(1e-9, float(priority.std())))
