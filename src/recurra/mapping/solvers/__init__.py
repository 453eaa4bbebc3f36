"""Solvers by name; each is `solve(problem, seconds, seed, progress) -> Solution`."""

from __future__ import annotations

from importlib import import_module

from recurra.errors import RecurraError
from recurra.mapping.search import Solver

SOLVERS = (
    "default",
    "prod",
    "random",
    "greedy",
    "xla-like",
    "evolution",
    "priority",
    "learned",
    "annealing",
    "lns",
    "mcts",
    "exact",
    "pack",
    "muzero",
    "alphazero",
    "policy",
)
LEARNERS = ("muzero", "alphazero", "policy")  # need `recurra[mapping-learn]`


def solver_of(name: str) -> Solver:
    """A solver by its name."""
    if name not in SOLVERS:
        raise RecurraError(f"there is no solver {name!r}", facts=f"there are: {', '.join(SOLVERS)}")
    module = {"random": "random_play"}.get(name, name.replace("-", "_"))
    return import_module(f"recurra.mapping.solvers.{module}").solve
