"""Solvers by name; each is `solve(problem, seconds, seed, progress) -> Solution`."""

from __future__ import annotations

from importlib import import_module

from recurra.errors import RecurraError
from recurra.mapping.search import Solver

LEARNERS = ("muzero", "alphazero", "policy")  # need `recurra[mapping-learn]`
SOLVERS = (
    *("default", "prod", "random", "greedy", "xla-like", "evolution", "priority", "learned"),
    *("annealing", "lns", "mcts", "exact", "pack", *LEARNERS),
)
MODULES = {"random": "random_play", "prod": "production"}  # of solvers with another name


def solver_of(name: str) -> Solver:
    """Return the solver of a name; raises `RecurraError` if there is none."""
    if name not in SOLVERS:
        raise RecurraError(f"there is no solver {name!r}", facts=f"there are: {', '.join(SOLVERS)}")
    if name in LEARNERS:
        return getattr(import_module("recurra.mapping.solvers.learners"), name)
    module = MODULES.get(name, name.replace("-", "_"))
    return import_module(f"recurra.mapping.solvers.{module}").solve
