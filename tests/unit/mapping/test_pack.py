"""Packing: the engines agree, trying everything agrees, and minimalloc's format goes in and out."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapping.test_native import needs_compiler
from mapping.test_problem import GOOD
from recurra.mapping import engine_choice
from recurra.mapping.solvers import solver_of
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.storage.exact_packing import Packed
from recurra.storage.mapping_problem import Problem, ProblemError
from recurra.storage.mapping_problem_text import (
    packing_to_csv,
    problem_from_csv,
    problem_to_csv,
    read_problem,
)

PYTHON = engine_choice.engine("python")
randoms = st.integers(0, 2**32).map(Random)


def tight(random: Random, wide: int = 12, high: int = 12, cuts: int = 8) -> Problem:
    """A rectangle of steps and addresses cut into items: packing them leaves nothing to spare."""
    parts = [(0, wide, 0, high)]
    for _ in range(cuts):
        parts.sort(key=lambda p: (p[1] - p[0]) * (p[3] - p[2]))
        a, b, low, top = parts.pop()
        if b - a > 1 and (random.random() < 0.5 or top - low < 2):
            m = random.randint(a + 1, b - 1)
            parts += [(a, m, low, top), (m, b, low, top)]
        elif top - low > 1:
            m = random.randint(low + 1, top - 1)
            parts += [(a, b, low, m), (a, b, m, top)]
        else:
            parts.append((a, b, low, top))
    random.shuffle(parts)
    rows = [f"{k},{a},{b},{top - low}" for k, (a, b, low, top) in enumerate(parts)]
    return problem_from_csv("id,lower,upper,size\n" + "\n".join(rows), high)


@settings(max_examples=100)
@given(randoms)
def test_what_was_cut_can_be_packed(random: Random) -> None:
    problem = tight(random, cuts=random.randint(1, 14))
    answer = solver_of("pack")(problem, 30, 0, None, PYTHON)
    assert validate(problem, answer) == len(problem.buffers)


@settings(max_examples=150)
@given(randoms)
def test_packing_is_what_trying_everything_finds(random: Random) -> None:
    count, limit = random.randint(2, 5), random.randint(3, 6)
    rows: list[str] = []
    for k in range(count):
        a = random.randint(0, 4)
        rows.append(f"{k},{a},{a + random.randint(1, 4)},{random.randint(1, 3)}")
    problem = problem_from_csv("id,lower,upper,size\n" + "\n".join(rows), limit)
    f = flat(problem)

    def fits(offsets: tuple[int, ...]) -> bool:
        for i in range(count):
            if offsets[i] + f.size[i] > limit:
                return False
            for j in range(i):
                apart = f.life_end[j] < f.at[i] or f.life_end[i] < f.at[j]
                below = offsets[j] + f.size[j] <= offsets[i]
                if not (apart or below or offsets[i] + f.size[i] <= offsets[j]):
                    return False
        return True

    possible = any(map(fits, product(range(limit), repeat=count)))
    ranks = np.array(random.sample(range(count), count))
    found, offsets = PYTHON.pack(f, ranks, random.random() < 0.5, 10**6)
    assert found == (Packed.YES if possible else Packed.NO)
    assert not possible or fits(tuple(offsets))


@needs_compiler
@settings(max_examples=150)
@given(randoms)
def test_packers_are_equal(native_engine: engine_choice.Engine, random: Random) -> None:
    problem = tight(random, 20, 20, random.randint(4, 30))
    if random.random() < 0.3:
        problem = Problem("less", 19, problem.instructions, problem.buffers)
    f = flat(problem)
    count = len(problem.buffers)
    ranks = np.array(random.sample(range(count), count))
    for by_load, nodes in product((False, True), (3, 50, 400)):
        ours, theirs = (e.pack(f, ranks, by_load, nodes) for e in (PYTHON, native_engine))
        assert ours == theirs


def test_what_cannot_be_packed_is_said() -> None:
    text = "id,lower,upper,size\na,0,2,6\nb,0,2,6\nc,1,3,6\n"
    with pytest.raises(ProblemError, match=r"packing cannot be packed\n.*12 B of fast memory"):
        solver_of("pack")(problem_from_csv(text, 12), 5, 0, None, PYTHON)
    with pytest.raises(ProblemError, match="p: buffer 1 is not one to pack"):
        solver_of("pack")(GOOD, 5, 0, None, PYTHON)


def test_names_with_commas_stay_one_value(tmp_path: Path) -> None:
    text = 'id,lower,upper,size\n"a,b",0,1,4\n'
    (tmp_path / "excel.csv").write_text(text, encoding="utf-8-sig")
    problem = read_problem(tmp_path / "excel.csv", 8)
    answer = solver_of("pack")(problem, 5, 0, None, PYTHON)
    assert packing_to_csv(text, problem, answer).splitlines()[1] == '"a,b",0,1,4,0'


def test_a_packing_goes_out_as_it_came_in() -> None:
    problem = tight(Random(0))
    again = problem_from_csv(problem_to_csv(problem), problem.fast_size)
    assert solver_of("pack")(again, 5, 0, None, PYTHON).reward(again) == problem.total
