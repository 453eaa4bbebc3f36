"""The door into the compiler: who packs the stores of a program, where `mapping` is asked to."""

from __future__ import annotations

from recurra.mapping.solvers import solver_of
from recurra.storage.mapping_problem import Problem, Solution

SECONDS = 2.0  # of the processor, for each size of the arena


def mapping(problem: Problem) -> Solution:
    """Solve by the packing solver. Raises ProblemError if there is no packing."""
    return solver_of("pack")(problem, SECONDS)
