"""The compiler's placement option "mapping": packs the stores of a program into one arena."""

from __future__ import annotations

from recurra.mapping.solvers import solver_of
from recurra.storage.mapping_problem import Problem, Solution

SECONDS = 2.0  # CPU seconds for each size of the arena


def mapping(problem: Problem) -> Solution:
    """Return a packing of all buffers. Raises ProblemError if there is none."""
    return solver_of("pack")(problem, SECONDS)
