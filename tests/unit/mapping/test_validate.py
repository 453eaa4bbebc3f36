"""The validator names each constraint; an answer that breaks one only, is told so."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from recurra.mapping.validate import InvalidSolution, validate, violations
from recurra.storage.mapping_problem import (
    Buffer,
    Instruction,
    Placement,
    Problem,
    ProblemError,
    Solution,
)

# Tensor 0 exists before the program and is read at 3 and 5, tensor 1 is made at 1, read at 4 and
# wanted after it, tensors 2 and 3 share a place: 3 overwrites 2 at step 4.
READ = Buffer(4, False, 3, 0, None, (-1, 6), 5, 10)
MADE = Buffer(4, True, 1, 1, None, (1, 6), 4, 20)
OLD = Buffer(2, True, 2, 2, 7, (2, 4), 2, 40)
PROGRAM = Problem(
    "program",
    8,
    tuple(Instruction(f"i{t}", 3) for t in range(6)),
    (
        MADE,
        OLD,
        READ,
        replace(MADE, is_output=False, target_time=4),
        replace(OLD, is_output=False, target_time=4),
        replace(OLD, tensor_id=3, target_time=4, live_range=(4, 5)),
        replace(READ, target_time=5),
    ),
)
DROP = None


def place(offset: int, start: int, end: int) -> Placement:
    return Placement(offset, start, end, False)


def copy(offset: int, start: int, end: int) -> Placement:
    return Placement(offset, start, end, True)


OLDS = (place(4, 2, 4), place(4, 4, 4), place(4, 4, 5))  # of group 7: tensor 2 twice, then 3
GROUP = (OLDS[0], DROP, DROP, *OLDS[1:])


def answer(made: Placement | None, *rest: Placement | None) -> Solution:
    return Solution((made, *rest))


@pytest.mark.parametrize(
    ("solution", "reward"),
    [
        (answer(*(DROP,) * 7), 0),
        (answer(DROP, *GROUP, DROP), 120),
        (answer(DROP, DROP, copy(0, 1, 3), DROP, DROP, DROP, place(0, 4, 5)), 20),
        (answer(DROP, DROP, copy(0, 1, 3), DROP, DROP, DROP, copy(4, 3, 5)), 20),
        (answer(copy(0, 1, 3), DROP, DROP, place(0, 4, 4), DROP, DROP, DROP), 40),
        (answer(copy(0, 1, 3), OLDS[0], DROP, place(0, 3, 4), *OLDS[1:], DROP), 160),
    ],
)
def test_answers_that_hold(solution: Solution, reward: int) -> None:
    assert validate(PROGRAM, solution) == reward


@pytest.mark.parametrize(
    ("constraint", "where", "solution"),
    [
        ("fast memory", "5..9 of 8 B", answer(copy(5, 1, 3), *(DROP,) * 6)),
        ("fast memory", "-1..3 of 8 B", answer(copy(-1, 1, 3), *(DROP,) * 6)),
        ("target time", "used at step 1.*at 2..3", answer(copy(0, 2, 3), *(DROP,) * 6)),
        ("target time", "from its step 1, not 0", answer(copy(0, 0, 3), *(DROP,) * 6)),
        ("target time", "at 1..6", answer(copy(0, 1, 6), *(DROP,) * 6)),
        (
            "target time",
            "until its step 3, not 4",
            answer(DROP, DROP, copy(0, 1, 4), *(DROP,) * 4),
        ),
        (
            "overlap",
            "buffers 0 and 1 share addresses at step 2",
            answer(copy(1, 1, 3), *GROUP, DROP),
        ),
        (
            "overlap",
            "buffers 2 and 6",
            answer(DROP, DROP, copy(0, 1, 3), DROP, DROP, DROP, copy(2, 3, 5)),
        ),
        ("alias offset", "1 is at 4, buffer 4 in slow", answer(DROP, OLDS[0], *(DROP,) * 5)),
        (
            "alias offset",
            "1 is at 4, buffer 5 at 0",
            answer(DROP, OLDS[0], DROP, DROP, OLDS[1], place(0, 4, 5), DROP),
        ),
        (
            "one copy at a time",
            "both copied in steps 2 and 3",
            answer(copy(0, 1, 3), DROP, DROP, DROP, DROP, DROP, copy(4, 2, 5)),
        ),
        (
            "bandwidth",
            "3 of 4 ps of its copy fit in 2..2",
            answer(copy(0, 1, 2), *(DROP,) * 6),
        ),
        (
            "residency",
            "read from slow memory at 4, never there",
            answer(place(0, 1, 5), *(DROP,) * 6),
        ),
        (
            "residency",
            "tensor 1 is wanted after the program",
            answer(place(0, 1, 5), DROP, DROP, place(0, 4, 4), DROP, DROP, DROP),
        ),
        (
            "residency",
            "stays until 4",
            answer(place(0, 1, 4), DROP, DROP, place(0, 4, 4), DROP, DROP, DROP),
        ),
        (
            "residency",
            "read from slow memory at 4, there after step 4",
            answer(copy(0, 1, 4), *(DROP,) * 6),
        ),
        (
            "residency",
            "copied from slow memory at 3, there after step 3",
            answer(copy(0, 1, 3), DROP, DROP, copy(4, 3, 4), DROP, DROP, DROP),
        ),
        (
            "residency",
            "buffer 6 stays from step 4 on, where its tensor is not",
            answer(*(DROP,) * 6, place(0, 4, 5)),
        ),
        (
            "residency",
            "buffer 6 stays from step 4 on",
            answer(DROP, DROP, copy(0, 1, 3), DROP, DROP, DROP, place(4, 4, 5)),
        ),
        (
            "residency",
            "buffer 1 is overwritten at 4, copied until 4",
            answer(DROP, copy(4, 2, 4), DROP, DROP, *OLDS[1:], DROP),
        ),
    ],
)
def test_each_constraint_has_a_name(constraint: str, where: str, solution: Solution) -> None:
    with pytest.raises(InvalidSolution, match="program: ") as refused:
        validate(PROGRAM, solution)
    assert refused.value.violations == violations(PROGRAM, solution)
    told = [v for v in refused.value.violations if re.search(where, v.where)]
    assert [v.constraint for v in told] == [constraint]


def test_a_solution_of_another_problem_is_refused() -> None:
    with pytest.raises(ProblemError, match="places 1 buffers, there are 7"):
        validate(PROGRAM, Solution((None,)))
