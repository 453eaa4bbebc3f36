"""Map tensors to fast memory: the game, its solvers, problem importers."""

from recurra.storage.mapping_problem import (
    Buffer,
    Instruction,
    Placement,
    Problem,
    ProblemError,
    Roofline,
    Solution,
)
from recurra.storage.mapping_problem_text import SCHEMA

__all__ = [
    "SCHEMA",
    "Buffer",
    "Instruction",
    "Placement",
    "Problem",
    "ProblemError",
    "Roofline",
    "Solution",
]
