"""Solvers by name; each is `solve(problem, seconds, seed, progress) -> Solution`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from recurra.errors import RecurraError
from recurra.mapping.search import Solver, solver

LEARNERS = ("muzero", "alphazero", "policy")  # need `recurra[mapping-learn]`
SOLVERS: Mapping[str, str] = {  # the module, and the function of a `Search`
    "default": "default.search_by_default",
    "prod": "default.search_for_production",
    "random": "game_search.play_randomly",
    "greedy": "one_pass.place_greedily",
    "xla-like": "one_pass.place_like_xla",
    "evolution": "game_search.evolve",
    "priority": "priority.evolve",
    "learned": "evolved_priorities.place_by_weights",
    "annealing": "game_search.anneal_from_nocopy",
    "lns": "lns.search_from_keys",
    "mcts": "mcts.search_tree",
    "exact": "exact.solve_to_optimality",
    "pack": "packing.pack",
    "muzero": "learners.muzero",
    "alphazero": "learners.alphazero",
    "policy": "learners.play_policy",
}


def solver_of(name: str) -> Solver:
    """Return the solver of a name; raises `RecurraError` if there is none."""
    if name not in SOLVERS:
        raise RecurraError(f"there is no solver {name!r}", facts=f"there are: {', '.join(SOLVERS)}")
    module, _, function = SOLVERS[name].partition(".")
    return solver(getattr(import_module(f"recurra.mapping.solvers.{module}"), function))
