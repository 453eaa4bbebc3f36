"""Upper bounds on the reward: what no mapping that holds can exceed.

The optimum of a program that every mapping satisfies (`relaxation.py`), with fractions, or with
whole numbers for what is large; stopped early, what its solver has proved until then.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.relaxation import Relaxation
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import Problem

Which = Literal["lp", "milp", "auto"]
FEW = 800  # buffers up to which all are whole or not at all
LARGE = 0.05  # of the fast memory: else only those of at least this size
NEAR = 1e-3  # how near to the optimum a bound need not come nearer
TOLERANCE = 1e-6  # of the solver, of all there is to gain


@dataclass(frozen=True)
class Bound:
    """No mapping has a larger reward, in picoseconds; `how` it was found."""

    reward: int
    how: Literal["everything", "lp", "milp"]


def bound(
    problem: Problem, which: Which = "auto", seconds: float = 60.0, near: float = NEAR
) -> Bound:
    """The bound that can be had in this time; at worst the reward of placing everything."""
    begun = time.monotonic()
    program = Relaxation(flat(problem))
    best = Bound(program.most(), "everything")
    if which != "milp":
        best = _lower(best, _fractions(program, seconds), "lp")
    left = seconds - (time.monotonic() - begun)
    if which != "lp" and left > 0:
        best = _lower(best, _whole(program, left, near), "milp")
    return best


def _lower(best: Bound, found: int | None, how: Literal["lp", "milp"]) -> Bound:
    return best if found is None or found >= best.reward else Bound(found, how)


def _fractions(program: Relaxation, seconds: float) -> int | None:
    """The optimum, and a little for the solver's tolerance; None if time is over."""
    from scipy.optimize import linprog

    upper = np.array(program.upper)
    result: Any = linprog(
        _objective(program),
        A_ub=program.matrix(),
        b_ub=np.array(program.limits),
        bounds=np.stack([np.zeros_like(upper), upper], 1),
        method="highs",
        options={"time_limit": seconds},
    )
    return _picoseconds(program, result.fun) if result.status == 0 else None


def _whole(program: Relaxation, seconds: float, near: float) -> int | None:
    """The best bound of a program with whole numbers that is proved in time; None: none is."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    f = program.f
    least = 0 if program.count <= FEW else LARGE * f.problem.fast_size
    whole = np.zeros(len(program.upper))
    whole[: 2 * program.count] = np.tile(f.size >= least, 2)
    upper: Any = np.array(program.upper)
    limits: Any = np.array(program.limits)
    with _told_as_errors():
        result: Any = milp(
            _objective(program),
            constraints=LinearConstraint(program.matrix(), -np.inf, limits),
            bounds=Bounds(np.zeros_like(upper), upper),
            integrality=whole,
            options={"time_limit": seconds, "mip_rel_gap": near},
        )
    return _picoseconds(program, getattr(result, "mip_dual_bound", None))


@contextmanager
def _told_as_errors() -> Generator[None]:
    """HiGHS prints remarks from C; standard output is for answers."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _objective(program: Relaxation) -> NDArray[np.float64]:
    found = np.zeros(len(program.upper))
    found[2 * program.count : 2 * program.count + program.steps] = -1
    return found


def _picoseconds(program: Relaxation, least: float | None) -> int | None:
    if least is None or not np.isfinite(least):
        return None
    return int(-least * program.unit + TOLERANCE * program.most())
