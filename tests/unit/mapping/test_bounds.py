"""No mapping that holds gains more than its bound, or breaks a row of the program behind it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_mappings import random_problem
from recurra.mapping import copy_windows, engine_choice, relaxation
from recurra.mapping.bounds import bound
from recurra.mapping.copy_windows import Bandwidth, CopyWindow, crossings
from recurra.mapping.model_library import instance
from recurra.mapping.relaxation import Relaxation
from recurra.mapping.search import Search
from recurra.mapping.solvers import solver_of
from recurra.mapping.solvers.exact import solve_to_optimality
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Buffer, Instruction, Problem, Solution, copy_steps
from recurra.storage.mapping_problem_text import problem_from_csv

randoms = st.integers(0, 2**32).map(Random)
PYTHON = engine_choice.engine("python")


def exact(problem: Problem, seconds: float = 60.0) -> tuple[Solution, bool]:
    found = Search(problem, seconds, 0, None, PYTHON)
    proved = solve_to_optimality(found)
    return found.solution, proved


@settings(max_examples=60)
@given(randoms)
def test_bounds_bound_what_is_optimal(random: Random) -> None:
    problem = random_problem(random, 5, random.randint(2, 9))
    if len(problem.buffers) > 7:
        return
    best, proved = exact(problem)
    assert proved
    reward = validate(problem, best)
    with pytest.MonkeyPatch.context() as patch:  # however many windows are told apart
        patch.setattr(relaxation, "FAR", random.choice([0, 1, 2, 40]))
        patch.setattr(copy_windows, "NARROW", random.choice([0, 1, 3]))
        lp, milp = bound(problem, "lp").reward, bound(problem, "milp").reward
    assert reward <= milp <= lp + 1 <= problem_most(problem) + 1


def problem_most(problem: Problem) -> int:
    """Everything wherever it gains, by trying."""
    total = 0
    for t, uses in enumerate(problem.uses):
        none = problem.latency(t, [False] * len(uses))
        total += max(
            none - problem.latency(t, inside) for inside in product([False, True], repeat=len(uses))
        )
    return total


def test_bounds_do_not_depend_on_the_unit() -> None:
    text = "id,lower,upper,size\na,0,2,6\nb,0,2,6\nc,1,3,6\nd,2,3,6\n"
    packing = problem_from_csv(text, 12)
    assert exact(packing)[0].reward(packing) == bound(packing).reward == 3
    larger = replace(packing, buffers=tuple(replace(b, benefit=10**9) for b in packing.buffers))
    assert bound(larger).reward == pytest.approx(3 * 10**9, abs=4000)


@pytest.mark.slow
@settings(max_examples=40)
@given(randoms)
def test_every_row_holds_for_every_mapping(random: Random) -> None:
    problem = random_problem(random, 12, random.randint(2, 20))
    for name in ("random", "greedy", "lns"):
        expect_no_row_broken(problem, solver_of(name)(problem, 0.01, 0, None, PYTHON))


@pytest.mark.parametrize("name", ["ppo_step", "alexnet_train", "wavenet", "gpt_decode"])
def test_every_row_holds_for_real_programs(name: str) -> None:
    problem = instance(name)
    expect_no_row_broken(problem, solver_of("greedy")(problem, 0.5, 0, None, PYTHON))


def expect_no_row_broken(problem: Problem, solution: Solution) -> None:
    program = Relaxation(flat(problem))
    values = as_columns(problem, solution, program)
    matrix = program.matrix()
    broken = np.flatnonzero(matrix @ values > np.array(program.limits) + 1e-6)
    assert not broken.size, [(program.rows[k], program.limits[k]) for k in broken]
    assert (values <= np.array(program.upper) + 1e-9).all()
    gained = values[2 * program.count : 2 * program.count + program.steps].sum() * program.unit
    assert gained >= solution.reward(problem) - 1e-6 * program.objective_bound()


def as_columns(problem: Problem, solution: Solution, program: Relaxation) -> Any:
    values = np.zeros(len(program.upper))
    for i, p in enumerate(solution.placements):
        values[i], values[program.count + i] = p is not None and p.copied, p is not None
    for i, copy in program.copies.items():
        p = solution.placements[i]
        if p is not None and p.copied:
            far = copy_steps(problem.buffers[i], p)[0 if copy.backwards else -1]
            values[copy.columns[copy.far >= far if copy.backwards else copy.far <= far]] = 1
    for t, uses in enumerate(problem.uses):
        inside = values[program.count + np.array(uses, int)] > 0
        gained = problem.latency(t, [False] * len(uses)) - problem.latency(t, inside.tolist())
        values[2 * program.count + t] = max(gained, 0) / program.unit
    own = 2 * program.count + program.steps
    windows = {int(v) for copy in program.copies.values() for v in copy.columns}
    for columns, coefficients in program.rows:  # room taken in one of two ways: the larger
        for v, x in zip(columns, coefficients, strict=True):
            if v >= own and v not in windows and x == -1:
                values[v] = max(values[v], np.dot(coefficients, values[columns]) + values[v])
    return values


def copied(target_time: int, demand: int) -> Buffer:
    return Buffer(4, False, target_time, target_time, None, (-1, target_time), demand, 10)


def program_of(supply: list[int], *buffers: Buffer) -> Problem:
    steps = tuple(Instruction(f"i{t}", x) for t, x in enumerate(supply))
    return Problem("made", 64, steps, buffers)


def test_one_copy_at_a_time_is_seen() -> None:
    alone = program_of([4, 4, 4, 4], copied(3, 8))
    assert bound(alone).reward == 10
    # both need the two steps before them, and share step 1 and the step after it
    both = program_of([4, 4, 4, 4], replace(copied(3, 8), tensor_id=9), copied(3, 8))
    assert bound(both).reward == exact(both)[0].reward(both) == 10
    apart = program_of([4, 4, 4, 4, 4], copied(2, 8), copied(4, 8))
    assert bound(apart).reward == 20


def test_room_is_taken_for_as_long_as_a_copy_takes() -> None:
    text = [copied(3, 12), Buffer(63, True, 1, 5, None, (1, 2), 100, 7)]
    crowded = program_of([4, 4, 4, 4], *reversed(text))
    assert bound(crowded).reward == exact(crowded)[0].reward(crowded) == 10


def test_what_is_moved_within_a_few_steps() -> None:
    problem = program_of([4, 2, 4, 0], copied(3, 5))
    f = flat(problem)
    until = np.concatenate([[0], np.cumsum(f.supply)])
    copy = CopyWindow(0, True, 2, np.array([1, 0]), np.array([0, 5]), 0)
    moved = Bandwidth(f, until, [copy])

    def within(a: int, b: int) -> dict[int, int]:
        return dict(zip(*(x.tolist() for x in moved.within(a, b)), strict=True))

    # from step 1 on: 3 at least at step 2, 1 at least at step 1; from step 0 on: nothing for sure
    assert within(2, 3) == {0: 3, 5: -3}
    assert within(1, 2) == {0: 1, 5: -1}
    assert within(1, 3) == {0: 5, 5: -4}
    assert within(0, 3) == {0: 5}
    assert list(copy.steps()) == [(2, 0), (1, 0), (0, 5)]
    assert crossings([copy, replace(copy, columns=np.array([7, 8]))]) == [[0, 7], [5, 8]]
