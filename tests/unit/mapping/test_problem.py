"""Problems and solutions as text, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_mappings import random_problem
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import (
    Buffer,
    Instruction,
    Latency,
    Placement,
    Problem,
    ProblemError,
    Roofline,
    Solution,
    nothing,
)
from recurra.storage.mapping_problem_text import (
    problem_from_csv,
    problem_from_json,
    problem_to_csv,
    problem_to_json,
    read_problem,
    solution_from_json,
    solution_to_json,
)

randoms = st.integers(0, 2**32).map(Random)
OUT = Buffer(4, True, 0, 0, None, (0, 1), 4, 1)
USE = replace(OUT, is_output=False, target_time=1)
STEPS = (Instruction("a", 3), Instruction("b", 3))
GOOD = Problem("p", 8, STEPS, (OUT, USE))


@given(randoms)
def test_json_keeps_everything(random: Random) -> None:
    problem = random_problem(random)
    assert problem_from_json(problem_to_json(problem)) == problem


@given(randoms)
def test_reward_is_what_the_latencies_say(random: Random) -> None:
    problem = random_problem(random)
    inside = [random.random() < 0.5 for _ in problem.buffers]
    by_hand = 0
    for t, uses in enumerate(problem.uses):
        here, x = [inside[i] for i in uses], problem.instructions[t].cost
        if isinstance(x, Roofline):
            moved = [f if h else s for s, f, h in zip(x.slow, x.fast, here, strict=True)]
            slow, now = max(x.compute, x.rest + sum(x.slow)), max(x.compute, x.rest + sum(moved))
            by_hand += (slow - now) * x.times
        elif isinstance(x, Latency):
            mask = "".join("1" if here[k] else "0" for k in reversed(x.varied))
            by_hand += x.latencies[0] - x.latencies[int(mask or "0", 2)]
        else:
            by_hand += sum(problem.buffers[i].benefit for i in uses if inside[i])
    assert problem.reward(inside) == by_hand


def test_a_solution_as_json() -> None:
    answer = Solution((Placement(0, 0, 1, False), None))
    assert solution_from_json(GOOD, solution_to_json(GOOD, answer)) == answer
    assert solution_from_json(GOOD, solution_to_json(GOOD, nothing(GOOD))) == nothing(GOOD)


def test_packing_keeps_who_meets_whom() -> None:
    problem = problem_from_csv(
        "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,100,200,2", 12
    )
    lives = {b.tensor_id: range(b.live_range[0], b.live_range[1] + 1) for b in problem.buffers}
    meet = {(a, b) for a in lives for b in lives if a < b and set(lives[a]) & set(lives[b])}
    assert meet == {(0, 2), (1, 2)}
    assert problem.total == 4
    again = problem_from_csv(problem_to_csv(problem), 12)
    assert [b.live_range for b in again.buffers] == [b.live_range for b in problem.buffers]


Parts = tuple[tuple[Instruction, ...], tuple[Buffer, ...]]


def wrong(what: str, *buffers: Buffer, steps: tuple[Instruction, ...] = STEPS) -> tuple[str, Parts]:
    return what, (steps, buffers)


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        wrong("program is empty.*no buffers"),
        wrong("program is empty.*no instructions", OUT, steps=()),
        wrong("buffer 0 .*: size is -4", replace(OUT, size=-4)),
        wrong("demand is -1.*at least 0", replace(OUT, demand=-1)),
        wrong("there is no such step.*0 to 1", replace(OUT, target_time=7)),
        wrong("ends before it starts: 1..0", replace(OUT, live_range=(1, 0))),
        wrong("outside the live range 0..3", replace(USE, live_range=(0, 3))),
        wrong("exists before it is computed", replace(OUT, target_time=1)),
        wrong("buffer 1 .*stands too late.*buffer 0", USE, OUT),
        wrong("another size.*5 here, 4", OUT, replace(USE, size=5)),
        wrong("another live_range.*first use", OUT, replace(USE, live_range=(0, 2))),
        wrong("used twice", OUT, USE, USE),
        wrong("read before it is written.*cycle", USE),
        wrong(
            "group 3 has tensors of different sizes.*4 B.*6 B",
            replace(OUT, alias_id=3, live_range=(0, 0)),
            replace(OUT, alias_id=3, tensor_id=1, target_time=1, live_range=(1, 1), size=6),
        ),
        wrong(
            "two live values in one place.*0..1.*0..1",
            replace(OUT, alias_id=3),
            replace(OUT, alias_id=3, tensor_id=1),
        ),
        wrong("size is 4.5, no whole number.*hint: size=5", replace(OUT, size=4.5)),
        wrong("benefit is '1', no whole number", replace(OUT, benefit="1")),
        wrong("live_range is 1.0, no whole number", replace(OUT, live_range=(0, 1.0))),
        wrong("supply is 0.5, no", OUT, USE, steps=(Instruction("a", 0.5), STEPS[1])),  # pyright: ignore[reportArgumentType]
        wrong("supply is -1", OUT, USE, steps=(Instruction("a", -1), STEPS[1])),
        wrong(
            "2 times of slow memory for 1 buffers",
            OUT,
            USE,
            steps=(Instruction("a", 1, Roofline(1, (1, 2), (0,))), STEPS[1]),
        ),
        wrong(
            "slower in fast memory.*3 ps in fast memory, 2",
            OUT,
            USE,
            steps=(Instruction("a", 1, Roofline(1, (2,), (3,))), STEPS[1]),
        ),
        wrong(
            "3 latencies.*1 buffers have 2 subsets",
            OUT,
            USE,
            steps=(Instruction("a", 1, Latency((0,), (3, 2, 1))), STEPS[1]),
        ),
        wrong(
            "benefit and cost disagree.*benefit is 1 ps.*a gains 2 ps",
            OUT,
            USE,
            steps=(Instruction("a", 1, Latency((0,), (3, 1))), STEPS[1]),
        ),
    ],
)
def test_contradictions_are_refused(message: str, parts: Parts) -> None:
    with pytest.raises(ProblemError, match=f"(?s){message}"):
        Problem("p", 8, *parts)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("fast_size",), "8", 'fast_size is "8", not integer'),
        (("fast_size",), 8.5, "fast_size is 8.5, not integer"),
        (("format",), "other/1", "format is 'other/1'"),
        (("extra",), 1, "the whole has .extra., which is none of format"),
        (("instructions", 1, "supply"), True, r"instructions\[1\].supply is true, not integer"),
        (("instructions", 0), {"name": "a"}, r"instructions\[0\] has no 'supply'"),
        (("buffers", 1), [1, 2], r"buffers\[1\] has 2 items, not 9"),
        (("buffers", 0, 4), "x", r'buffers\[0\]\[4\] is "x", not integer or null'),
    ],
)
def test_files_that_do_not_fit_are_refused(
    path: tuple[str | int, ...], value: object, message: str
) -> None:
    data = json.loads(problem_to_json(GOOD))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ProblemError, match=f"file: {message}"):
        problem_from_json(json.dumps(data), "file")


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="file:2: not JSON"):
        problem_from_json('{"a":\n!', "file")
    with pytest.raises(ProblemError, match="nested"):
        problem_from_json("[" * 10**5, "file")
    with pytest.raises(ProblemError, match="cannot be read"):
        read_problem(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ProblemError, match="cannot be read"):
        read_problem(tmp_path / "bytes.json")


def test_solutions_of_another_problem_are_refused() -> None:
    text = solution_to_json(GOOD, Solution((None, Placement(0, 0, 1, False))))
    with pytest.raises(ProblemError, match="buffer 9 is not there"):
        solution_from_json(GOOD, text.replace("[1,", "[9,"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the columns are missing"),
        ("id,lower,upper\n", ":1: the columns are id, lower, upper"),
        ("id,lower,upper,size\na,0,2,4\nb,3,3,4", ":3: the live range ends before it starts: 3..3"),
        ("id,lower,upper,size\na,0,2,-4", ":2: buffer a of -4 B"),
        ("id,lower,upper,size\na,0,2,4,8", ":2: 5 values for 4 columns"),
        ("lower,upper,size,id\n0,2,400", ":2: buffer  of 400 B"),
        ("id,lower,upper,size\na,0,2,99", ":2: buffer a of 99 B.*12 B of fast"),
        ("id,lower,upper,size\na,0,2", ":2: size is 'missing'"),
        ("id,lower,upper,size\na,0,x,2", ":2: upper is 'x'"),
        ("id,lower,upper,size\n", "the program is empty"),
    ],
)
def test_csv_that_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProblemError, match=f"(?s){message}"):
        problem_from_csv(text, 12)


@pytest.mark.parametrize("size", [10.5, "10", None, True])
def test_fast_memory_is_a_whole_number_of_bytes(size: object) -> None:
    with pytest.raises(ProblemError, match=r"fast_size is .*, no whole number"):
        Problem(GOOD.name, size, GOOD.instructions, GOOD.buffers)  # pyright: ignore[reportArgumentType]


def test_a_csv_file_needs_to_know_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,lower,upper,size\na,0,2,4\n")
    with pytest.raises(ProblemError, match=r"how much fast memory.*\n.*fast_size=2\*\*20"):
        read_problem(path)
    assert read_problem(path, 12).fast_size == 12


def test_a_problem_prints() -> None:
    assert re.fullmatch(r"p: 2 instructions, 2 buffers of 1 tensors.*", str(GOOD))
    assert "operand" in GOOD._repr_html_()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("kind", [list, iter, lambda x: np.array(x, object)])
def test_parts_may_be_any_sequence(kind: Any) -> None:
    made = Buffer(4, True, 0, 0, None, (0, 1), 3, 10)
    steps = (Instruction("make", 2), Instruction("wait", 2))
    given = Problem("x", 8, kind(steps), kind((made,)))
    assert given == Problem("x", 8, steps, (made,))
    assert hash(given) == hash(Problem("x", 8, steps, (made,)))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ((["make"], []), r"instructions\[0\] is 'make'"),
        (([Instruction("make", 2)], [{"size": 4}]), r"buffers\[0\] is {'size': 4}"),
        (([Instruction("make", 2)], 3), "buffers is 3, no sequence"),
    ],
)
def test_parts_of_another_kind_are_refused(parts: Any, told: str) -> None:
    with pytest.raises(ProblemError, match=told):
        Problem("x", 8, *parts)


@pytest.mark.parametrize("kind", [list, iter, np.array])
def test_ranges_and_tables_may_be_any_sequence(kind: Any) -> None:
    made = Buffer(4, True, 0, 0, None, kind([0, 1]), 3, 10)
    table = Latency(kind([0]), kind([12, 2]))
    steps = (Instruction("make", 2, table), Instruction("wait", 2))
    given = Problem("x", 8, steps, (made,))
    assert hash(given) == hash(problem_from_json(problem_to_json(given)))
    assert hash(Roofline(1, kind([2]), kind([1]))) == hash(Roofline(1, (2,), (1,)))
    answer = Solution(kind([[0, 0, 1, 0]]))
    assert hash(answer) == hash(Solution((Placement(0, 0, 1, False),)))
    assert validate(given, answer) == 10
    assert solution_from_json(given, solution_to_json(given, answer)) == answer


@pytest.mark.parametrize(
    ("kind", "parts", "told"),
    [
        (
            Buffer,
            (
                4,
                True,
                0,
                0,
                None,
                3,
                3,
                10,
            ),
            "Buffer: live_range is 3, no sequence",
        ),
        (
            Buffer,
            (
                4,
                True,
                1,
                0,
                None,
                (0, 1, 2),
                3,
                10,
            ),
            r"live_range=\(1, 1\)",
        ),
        (
            Roofline,
            (
                1,
                2,
                (3,),
            ),
            "Roofline: slow is 2, no sequence",
        ),
        (
            Latency,
            (
                (0,),
                None,
            ),
            "Latency: latencies is None, no sequence",
        ),
        (Solution, (3,), "Solution: placements is 3, no sequence"),
        (Solution, ([None, 7],), r"placements\[1\] is 7"),
        (Solution, ([(1, 2)],), r"placements\[0\] is \(1, 2\)"),
    ],
)
def test_ranges_and_tables_of_another_kind_are_refused(kind: Any, parts: Any, told: str) -> None:
    with pytest.raises(ProblemError, match=told):
        kind(*parts)
