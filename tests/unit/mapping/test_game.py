"""Whatever is played or arranged holds; undo is exact; the rules of the paper on small boards."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from random_mappings import random_problem
from recurra.mapping.game import PREFERENCES, Action, Game
from recurra.mapping.game_state import Move
from recurra.mapping.order_free_placer import OrderFreePlacer, Rounds
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Buffer, Instruction, Problem

COPY, NOCOPY, DROP = Action
randoms = st.integers(0, 2**32).map(Random)


def state(game: Game) -> Any:
    """Everything that an action may change."""
    board = game.board
    private = {k: v for k, v in vars(game).items() if k not in ("board", "flat")}
    blocks = [sorted(x) for x in vars(board)["_blocks"]]
    kept = ("left", "crossed", "moves", "used", "traffic", "mask", "reward")
    return repr((private, blocks, {k: vars(board)[k] for k in kept}))


@settings(max_examples=300)
@given(randoms)
def test_every_finished_game_holds(random: Random) -> None:
    problem = random_problem(random)
    game = Game(flat(problem))
    game.play_random([random.randrange(6) for _ in range(20)])
    assert validate(problem, game.solution()) == game.reward


@settings(max_examples=200)
@given(randoms)
def test_preferences_are_followed(random: Random) -> None:
    problem = random_problem(random)
    game = Game(flat(problem))
    preferences = [random.randrange(len(PREFERENCES)) for _ in problem.buffers]
    assert game.play(preferences) == validate(problem, game.solution())


@settings(max_examples=100)
@given(randoms)
def test_undo_is_exact(random: Random) -> None:
    problem = random_problem(random)
    game = Game(flat(problem))
    seen = [state(game)]
    while not game.done and (legal := list(game.legal())):
        before = game.reward
        gained = game.step(random.choice(legal))
        assert game.reward == before + gained
        seen.append(state(game))
        if random.random() < 0.2:
            for _ in range(min(game.index, 3)):
                seen.pop()
                before = game.reward
                assert game.undo() == before - game.reward
                assert state(game) == seen[-1]
    while game.index:
        seen.pop()
        game.undo()
        assert state(game) == seen[-1]


@settings(max_examples=200)
@given(randoms)
def test_every_arrangement_holds(random: Random) -> None:
    problem = random_problem(random)
    arranger = OrderFreePlacer(flat(problem))
    order = random.sample(range(len(problem.storages)), len(problem.storages))
    reward = arranger.arrange(order)
    assert validate(problem, arranger.board.solution()) == reward
    arranger.improve(random_rounds(random, len(problem.storages), 20))
    assert validate(problem, arranger.board.solution()) == arranger.board.reward
    assert validate(problem, arranger.solution()) == arranger.best >= reward


def random_rounds(random: Random, storages: int, count: int) -> Rounds:
    def numbers(n: int, of: int) -> Any:
        return np.array([random.randrange(of) for _ in range(n)], np.int64)

    return Rounds(
        order=numbers(count * 4, storages + 1).reshape(count, 4) - 1,
        seed=numbers(count, 2**62),
        skip=numbers(count, 2**31),
        copy=numbers(count, 2**32),
        short=numbers(count, 2**32),
        bear=numbers(count, 8),
    )


def program(*buffers: Buffer, fast_size: int = 8, supply: tuple[int, ...] = (3,) * 6) -> Problem:
    steps = tuple(Instruction(f"i{t}", x) for t, x in enumerate(supply))
    return Problem("program", fast_size, steps, buffers)


def after(problem: Problem, *actions: Action) -> Game:
    game = Game(flat(problem))
    for action in actions:
        game.step(action)
    return game


READ = Buffer(4, False, 4, 0, None, (-1, 6), 5, 10)
MADE = Buffer(4, True, 1, 1, None, (1, 5), 4, 20)


def test_an_operand_is_copied_in_as_late_as_can_be() -> None:
    assert after(program(READ)).legal() == {COPY: Move(0, 2, 4, copied=True), DROP: Move(-1, 0, -1)}
    narrow = program(READ, supply=(9, 1, 1, 2, 9, 9))
    assert after(narrow).move(COPY) == Move(0, 0, 4, copied=True)
    short = program(READ, supply=(1, 1, 1, 1, 9, 9))
    assert COPY not in after(short).legal()


def test_an_output_leaves_as_early_as_can_be() -> None:
    game = after(program(MADE))
    assert game.move(COPY) == Move(0, 1, 3, copied=True)
    assert game.move(NOCOPY) == Move(0, 1, 5)


def test_what_is_wanted_after_the_program_must_be_in_slow_memory() -> None:
    wanted = replace(MADE, live_range=(1, 6))
    assert set(after(program(wanted)).legal()) == {COPY, DROP}


def test_what_is_only_in_fast_memory_is_read_there() -> None:
    read = replace(MADE, is_output=False, target_time=3)
    game = after(program(MADE, read), NOCOPY)
    assert game.legal() == {NOCOPY: Move(0, 3, 3, covered=True)}


def test_nocopy_prolongs_at_the_same_offset() -> None:
    again = replace(READ, target_time=5)
    replace(MADE, target_time=5, size=8, live_range=(5, 5))
    game = after(program(READ, again), COPY)
    assert game.move(NOCOPY) == Move(0, 5, 5)
    blocker = Buffer(8, True, 5, 3, None, (5, 5), 1, 1)
    game = after(program(READ, again, blocker), COPY, NOCOPY)
    assert NOCOPY not in game.legal()


def test_copies_meet_in_one_step_at_most() -> None:
    # The first copy takes steps 2 and 3; of step 2 one picosecond is left, and no copy crosses it.
    other = replace(READ, tensor_id=5, demand=1)
    more = replace(READ, tensor_id=5, demand=5)
    assert after(program(READ, other), COPY).move(COPY) is None  # 3 is used up, 2 is crossed to
    late = (READ, replace(other, target_time=5))
    assert after(program(*late), COPY).move(COPY) == Move(4, 4, 5, copied=True)
    assert after(program(READ, replace(more, target_time=5)), COPY).move(COPY) is None
    early = (replace(other, target_time=3), READ)
    game = after(program(*early), COPY)
    assert (game.board.left[2], game.move(COPY)) == (2, Move(4, 2, 4, copied=True))


def test_a_group_is_in_fast_memory_or_out_of_it() -> None:
    old = replace(MADE, alias_id=3, live_range=(1, 4))
    read = replace(old, is_output=False, target_time=4)
    new = replace(old, tensor_id=2, target_time=4, live_range=(4, 5))
    game = after(program(old, read, new), NOCOPY)
    assert set(game.legal()) == {NOCOPY}
    game.step(NOCOPY)
    assert set(game.legal()) == {NOCOPY}  # the copy would need a step that is not there
    assert game.move(NOCOPY) == Move(0, 4, 5)
    game = after(program(old, read, new), DROP)
    assert set(game.legal()) == {DROP}


def test_drop_backup_goes_back_to_where_all_could_be_dropped() -> None:
    # `big` takes what the group's second member needs: the group is stuck, and dropped.
    first = Buffer(4, True, 0, 0, 9, (0, 3), 1, 1)
    second = Buffer(4, True, 3, 1, 9, (3, 5), 1, 1)
    harmless = Buffer(1, True, 0, 7, None, (0, 0), 1, 5)
    big = Buffer(4, True, 2, 2, None, (2, 5), 99, 50)
    problem = program(harmless, first, big, second, fast_size=8)
    game = after(problem, NOCOPY, COPY, NOCOPY)
    assert game.board.moves[2] == Move(0, 2, 5)
    assert game.legal() == {}
    assert game.backup() == 2
    assert (game.index, game.reward) == (1, 5)
    assert set(game.legal()) == {DROP}
    assert game.play([1] * 4) == 55
    assert validate(problem, game.solution()) == 55
