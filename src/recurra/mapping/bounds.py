"""Upper bounds on the reward, which no valid mapping exceeds.

A bound is the optimum of a linear program that every mapping satisfies (`relaxation.py`), with
fractions, or with integers for large buffers; stopped early, the bound that its solver has proved.
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
FEW = 800  # up to this number of buffers, all of them are integer variables
LARGE = 0.05  # share of fast memory: in larger programs only buffers of at least this size are
NEAR = 1e-3  # the relative gap to the optimum at which the solver stops
TOLERANCE = 1e-6  # of the solver, as a share of all there is to gain


@dataclass(frozen=True)
class Bound:
    """The reward in picoseconds that no mapping exceeds, and how it was found."""

    reward: int
    how: Literal["everything", "lp", "milp"]


def bound(
    problem: Problem, which: Which = "auto", seconds: float = 60.0, near: float = NEAR
) -> Bound:
    """Return the best bound found in this time; at worst the reward of placing everything."""
    begun = time.monotonic()
    program = Relaxation(flat(problem))
    bounds = [Bound(program.objective_bound(), "everything")]
    if which != "milp" and (reward := _solve_lp(program, seconds)) is not None:
        bounds.append(Bound(reward, "lp"))
    left = seconds - (time.monotonic() - begun)
    if which != "lp" and left > 0 and (reward := _solve_milp(program, left, near)) is not None:
        bounds.append(Bound(reward, "milp"))
    return min(bounds, key=lambda x: x.reward)


def _solve_lp(program: Relaxation, seconds: float) -> int | None:
    """Return the optimum, plus the solver's tolerance; None if the time is over."""
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


def _solve_milp(program: Relaxation, seconds: float, near: float) -> int | None:
    """Return the best bound of the integer program that is proved in time; None if none is."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    f = program.f
    least = 0 if program.count <= FEW else LARGE * f.problem.fast_size
    integer = np.zeros(len(program.upper))
    integer[: 2 * program.count] = np.tile(f.size >= least, 2)
    upper: Any = np.array(program.upper)
    limits: Any = np.array(program.limits)
    with _stdout_to_stderr():
        result: Any = milp(
            _objective(program),
            constraints=LinearConstraint(program.matrix(), -np.inf, limits),
            bounds=Bounds(np.zeros_like(upper), upper),
            integrality=integer,
            options={"time_limit": seconds, "mip_rel_gap": near},
        )
    return _picoseconds(program, getattr(result, "mip_dual_bound", None))


@contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """Send the remarks that HiGHS prints from C to standard error; answers go to stdout."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)


def _objective(program: Relaxation) -> NDArray[np.float64]:
    weights = np.zeros(len(program.upper))
    weights[2 * program.count : 2 * program.count + program.steps] = -1
    return weights


def _picoseconds(program: Relaxation, least: float | None) -> int | None:
    if least is None or not np.isfinite(least):
        return None
    return int(-least * program.unit + TOLERANCE * program.objective_bound())
