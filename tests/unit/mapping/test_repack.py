"""Repacking: the same placements at new offsets, and what had room in pieces only is placed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapping.test_game import random_rounds
from mapping.test_native import needs_compiler
from mapping.test_pack import tight
from random_mappings import random_problem
from recurra.mapping import engine_choice
from recurra.mapping.model_library import instance
from recurra.mapping.native import NativeArranger
from recurra.mapping.order_free_placer import OrderFreePlacer
from recurra.mapping.solvers import one_pass, solver_of
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Buffer, Placement, Problem, Solution, packing

PYTHON = engine_choice.engine("python")
randoms = st.integers(0, 2**32).map(Random)

# The first two leave 3 and 1 bytes; the third takes 2 of the 3, the last would need 2 together.
ROWS = [(0, 0, 3), (0, 2, 2), (1, 2, 2), (1, 2, 2)]
PIECES = packing("pieces", ROWS, 6)
ORDER = range(len(ROWS))


def any_problem(random: Random) -> Problem:
    make = random.choice([random_problem, tight, lambda random: random_problem(random, 40, 12)])
    return make(random)


def offsets(answer: Solution) -> list[int | None]:
    return [p and p.offset for p in answer.placements]


def test_what_has_room_in_pieces_only_is_placed() -> None:
    arranger = OrderFreePlacer(flat(PIECES))
    assert arranger.arrange(ORDER) == 3
    assert offsets(arranger.current()) == [0, 3, 0, None]
    assert arranger.arrange_repacking(ORDER, 1) == validate(PIECES, arranger.current()) == 4
    assert offsets(arranger.current()) == [2, 0, 2, 4]
    assert arranger.arrange_repacking(ORDER, 0) == 3


def test_what_has_no_room_at_all_costs_no_repacking() -> None:
    rows = [(0, 0, 6), (0, 0, 1), *((a + 1, b + 1, size) for a, b, size in ROWS)]
    arranger = OrderFreePlacer(flat(packing("full", rows, 6)))
    assert arranger.arrange_repacking(range(len(rows)), 1) == 5


def test_repackings_are_counted() -> None:
    rows = [*ROWS, *((a + 3, b + 3, size) for a, b, size in ROWS)]
    arranger = OrderFreePlacer(flat(packing("twice", rows, 6)))
    assert [arranger.arrange_repacking(range(len(rows)), k) for k in range(4)] == [6, 7, 8, 8]


def test_what_is_left_out_of_a_full_step_is_left_out() -> None:
    problem = packing("over", [*ROWS, (1, 1, 2)], 6)
    arranger = OrderFreePlacer(flat(problem))
    assert arranger.arrange_repacking(range(5), 9) == validate(problem, arranger.current()) == 4


def test_a_group_keeps_one_offset() -> None:
    made, *others = PIECES.buffers[1], PIECES.buffers[0], *PIECES.buffers[2:]
    made = replace(made, alias_id=7, live_range=(0, 1))
    read = replace(made, is_output=False, target_time=1)
    written = replace(made, tensor_id=9, target_time=1, live_range=(1, 2))
    buffers = (others[0], made, read, written, *others[1:])
    problem = replace(PIECES, name="group", buffers=buffers)
    arranger = OrderFreePlacer(flat(problem))
    assert arranger.arrange(ORDER) == 5
    assert offsets(arranger.current()) == [0, 3, 3, 3, 0, None]
    assert arranger.arrange_repacking(ORDER, 1) == validate(problem, arranger.current()) == 6
    assert offsets(arranger.current()) == [2, 0, 0, 0, 2, 4]


def test_what_comes_again_may_come_elsewhere() -> None:
    read = Buffer(2, False, 2, 0, None, (-1, 5), 1, 1)
    buffers = (read, replace(read, target_time=3), replace(read, target_time=5))
    steps = packing("again", [(0, 4, 1)], 6).instructions
    problem = Problem("again", 6, steps, buffers)
    arranger = OrderFreePlacer(flat(problem))
    arranger.arrange([0])
    comes, stays, again = (m for m in arranger.board.moves if m is not None)
    arranger.board.take(2)
    arranger.board.put(2, again._replace(offset=3, start=4, copied=True))
    assert validate(problem, arranger.current()) == 3
    assert offsets(arranger.current()) == [0, 0, 3]
    assert arranger.repack()
    assert (comes.offset, stays.offset) == (0, 0)
    assert offsets(arranger.current()) == [0, 0, 0]
    assert validate(problem, arranger.current()) == 3


def arranged(random: Random, problem: Problem) -> OrderFreePlacer:
    arranger = OrderFreePlacer(flat(problem))
    arranger.arrange(random.sample(range(len(problem.storages)), len(problem.storages)))
    arranger.improve(random_rounds(random, len(problem.storages), random.choice([0, 10])))
    return arranger


def at_zero(p: Placement | None) -> Placement | None:
    return p and p._replace(offset=0)


@settings(max_examples=200)
@given(randoms)
def test_only_offsets_change(random: Random) -> None:
    problem = any_problem(random)
    arranger = arranged(random, problem)
    board, before, reward = arranger.board, arranger.current(), arranger.reward
    kept = repr((board.left, board.crossed, sorted(board.used.items()), board.mask, board.traffic))
    packed = arranger.repack()
    after = arranger.current()
    assert validate(problem, after) == arranger.reward == reward
    assert [*map(at_zero, after.placements)] == [*map(at_zero, before.placements)]
    assert packed or after == before
    now = repr((board.left, board.crossed, sorted(board.used.items()), board.mask, board.traffic))
    assert now == kept
    arranger.improve(random_rounds(random, len(problem.storages), 10))
    assert validate(problem, arranger.current()) == arranger.reward


def test_repacking_may_fail() -> None:
    random = Random(0)
    assert {arranged(random, tight(random)).repack() for _ in range(100)} == {True, False}


@settings(max_examples=200)
@given(randoms)
def test_the_fullest_step_is_what_counting_finds(random: Random) -> None:
    problem = random_problem(random)
    board = arranged(random, problem).board
    start = random.randrange(problem.steps)
    end = random.randrange(start, problem.steps)
    inside = [
        (i, b, m) for i, (b, m) in enumerate(zip(problem.buffers, board.moves, strict=True)) if m
    ]
    taken = [
        {
            (b.alias_id, i if b.alias_id is None else 0): b.size
            for i, b, m in inside
            if m.start <= t <= m.end and not m.covered
        }
        for t in range(start, end + 1)
    ]
    assert board.fullest(start, end) == max(sum(x.values()) for x in taken)


@settings(max_examples=100)
@given(randoms)
def test_repacking_loses_nothing(random: Random) -> None:
    problem = any_problem(random)
    arranger = OrderFreePlacer(flat(problem))
    order = random.sample(range(len(problem.storages)), len(problem.storages))
    assert arranger.arrange_repacking(order, 5) == validate(problem, arranger.current())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_pass, "REPACKS", 0)
        without = solver_of("xla-like")(problem, 1, 0, None, PYTHON).reward(problem)
    answer = solver_of("xla-like")(problem, 1, 0, None, PYTHON)
    assert validate(problem, answer) >= without


@pytest.mark.parametrize("name", ["wavenet", "alphatensor"])
def test_programs_gain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = instance(name)
    reward = solver_of("xla-like")(problem, 1, 0, None, PYTHON).reward(problem)
    monkeypatch.setattr(one_pass, "REPACKS", 0)
    assert reward > solver_of("xla-like")(problem, 1, 0, None, PYTHON).reward(problem)


@pytest.mark.slow
@needs_compiler
def test_engines_repack_alike(native_engine: engine_choice.Engine) -> None:
    random = Random(3)
    for _ in range(400):
        problem = any_problem(random)
        storages = range(len(problem.storages))
        ours, theirs = OrderFreePlacer(flat(problem)), native_engine.arranger(flat(problem))
        for most in (1, 2, 3, 9):
            order = random.sample(storages, len(storages))
            assert ours.arrange_repacking(order, most) == theirs.arrange_repacking(order, most)
            same(ours, theirs)
        rounds = random_rounds(random, len(storages), 10)
        assert ours.improve(rounds) == theirs.improve(rounds)
        assert ours.repack() == theirs.repack()
        same(ours, theirs)
        assert ours.improve(rounds) == theirs.improve(rounds)
        same(ours, theirs)


def same(ours: OrderFreePlacer, theirs: OrderFreePlacer | NativeArranger) -> None:
    assert (ours.reward, ours.best) == (theirs.reward, theirs.best)
    assert ours.current() == theirs.current()
    assert ours.solution() == theirs.solution()


@needs_compiler
@pytest.mark.parametrize("name", ["gru_infer", "alphatensor", "resnet50_train"])
def test_engines_repack_programs_alike(native_engine: engine_choice.Engine, name: str) -> None:
    f = flat(instance(name))
    ours, theirs = OrderFreePlacer(f), native_engine.arranger(f)
    order = sorted(range(len(f.grouped)), key=lambda s: -f.size[f.members[f.member_at[s]]])
    assert ours.arrange_repacking(order, 3) == theirs.arrange_repacking(order, 3)
    assert ours.current() == theirs.current()
