"""What learners see: the engines agree, and the naive reading of a mapping agrees with both."""

from __future__ import annotations

from random import Random

import numpy as np

from mapping.test_native import needs_compiler
from random_mappings import random_problem
from recurra.mapping import engine_choice
from recurra.mapping.game import Action, Game
from recurra.mapping.learn.network_inputs import observe_game
from recurra.mapping.observation import GRID, observe
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import Problem, Solution

CELLS = 24


def occupied(problem: Problem, answer: Solution, step: int, low: float, high: float) -> bool:
    """Is any byte of low..high taken in this step?"""
    return any(
        p is not None
        and p.start <= step <= p.end
        and p.offset < high
        and p.offset + problem.buffers[i].size > low
        for i, p in enumerate(answer.placements)
    )


def test_a_sight_is_what_is_placed() -> None:
    for k in range(30):
        random = Random(k)
        problem = random_problem(random, 30, random.randint(1, 16))
        game, size = Game(flat(problem)), max(1, problem.fast_size)
        game.play_random([random.randint(0, 5) for _ in range(97)], random.randint(1, 40))
        observe_game, answer = observe(game, CELLS), game.solution()
        t = int(game.flat.at[min(game.index, len(game.flat.at) - 1)])
        for cell in range(CELLS):
            low, high = cell * size / CELLS, (cell + 1) * size / CELLS
            assert observe_game.profile[cell] == occupied(problem, answer, t, low, high)
        for row, column in ((random.randrange(GRID), random.randrange(GRID)) for _ in range(200)):
            low, high = row * size / GRID, (row + 1) * size / GRID
            step = t - GRID // 2 + column
            assert observe_game.grid[row, column] == occupied(problem, answer, step, low, high)
        legal = {} if game.done else game.legal()
        for a in Action:
            move = legal.get(a)
            shown = (0, 0, 0, 0) if move is None else (1, move.start, move.end, move.offset)
            assert tuple(observe_game.moves[a].tolist()) == shown


@needs_compiler
def test_the_engines_see_and_advance_alike(native_engine: engine_choice.Engine) -> None:
    for k in range(60):
        random = Random(k)
        f = flat(random_problem(random, 40, random.choice([6, 12, 40])))
        ours, theirs = Game(f), native_engine.game(f)
        while True:
            backed = random.random() < 0.7
            choices = ours.advance(backed)
            assert choices == theirs.advance(backed)
            assert (ours.index, ours.reward) == (theirs.index, theirs.reward)
            for a, b in zip(observe(ours, CELLS), observe_game(theirs, CELLS), strict=True):
                assert np.array_equal(a, b)
            assert ours.price() == theirs.price()
            if ours.done:
                break
            action = random.choice(list(ours.legal())) if choices else None
            if action is not None:
                assert ours.step(action) == theirs.step(action)


def test_the_price_is_what_drop_backup_takes_back() -> None:
    backed = 0
    for k in range(300):
        random = Random(k)
        game = Game(flat(random_problem(random, 40, random.choice([6, 12]))))
        while game.advance(backed=False) or not game.done:
            if game.legal():
                game.step(random.choice(list(game.legal())))
            else:
                price, before = game.price(), game.reward
                game.backup()
                assert before - game.reward == price
                backed += 1
    assert backed > 20
