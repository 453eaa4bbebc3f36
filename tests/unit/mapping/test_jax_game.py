"""The JAX twin of the game: many random games at once, each as in Python, step for step."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from random_mappings import random_problem
from recurra.mapping.environment import MapGame
from recurra.mapping.game import Action, Game
from recurra.mapping.jax_game import GameArrays, ProblemArrays, reset, rules_of, solution, step
from recurra.mapping.model_library import instance
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Problem, ProblemError

GAMES = 24


def game_at_random(problem: Problem, draws: Any, illegal: float) -> tuple[list[Any], Game, bool]:
    """In Python, as the environment plays: per step what is legal, the action, what it gains."""
    game, told, lost = Game(flat(problem)), list[Any](), False
    while not game.done and not lost:
        moves, before = game.legal(), game.reward
        draw = int(draws[len(told)])
        choice = list(moves) if draw % 1000 >= illegal * 1000 else list(Action)
        action = choice[draw // 1000 % len(choice)]
        lost = action not in moves
        if not lost:
            game.step(action)
            while not game.done and not game.legal():
                game.backup()
        gained = -max(0, before) if lost else game.reward - before
        told.append((sorted(moves), action, gained, game.index))
    return told, game, lost


@jax.jit
def played(rules: ProblemArrays, actions: Any) -> Any:
    """All games [K, GAMES] at once: the last states, and per step what was legal, where, gains."""

    def one(state: GameArrays, a: Any) -> Any:
        after, gained = jax.vmap(step, (None, 0, 0))(rules, state, a)
        return after, (state.moves.legal, after.board.index, gained)

    return jax.lax.scan(one, jax.vmap(lambda _: reset(rules))(actions[0]), actions)


def agree(problem: Problem, seed: int, illegal: float = 0.0) -> int:
    """Compares as many games; the number of steps that both played, and how many went back."""
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, 6000, (GAMES, 8 * len(problem.buffers)))
    ours = [game_at_random(problem, row, illegal) for row in draws]
    longest = max(len(told) for told, _, _ in ours)
    actions = np.zeros((GAMES, (longest // 256 + 1) * 256), np.int64)  # nothing after the end
    for row, (told, _, _) in zip(actions, ours, strict=True):
        row[: len(told)] = [action for _, action, _, _ in told]
    with jax.enable_x64(True):
        last, told = played(rules_of(problem), jnp.asarray(actions).T)
    legal, index, gained = (np.asarray(x) for x in told)
    lanes = [jax.tree.map(lambda x, k=k: np.asarray(x)[k], last) for k in range(GAMES)]
    for k, (told, game, lost) in enumerate(ours):
        for j, (moves, _, gain, at) in enumerate(told):
            assert sorted(np.nonzero(legal[j, k])[0].tolist()) == moves
            assert (gained[j, k], index[j, k]) == (gain, at)
        assert not gained[len(told) :, k].any()
        assert bool(lanes[k].lost) == lost
        assert solution(lanes[k]) == game.solution()
        assert lanes[k].board.reward == game.reward
        if not lost:
            assert validate(problem, solution(lanes[k])) == game.reward
    return sum(at < j for told, _, _ in ours for j, (_, _, _, at) in enumerate(told, 1))


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_random_games_are_the_same() -> None:
    backed = sum(agree(random_problem(Random(seed), 24, 12), seed) for seed in (5, 11))
    assert backed > 0, "no game went back: nothing was tested of it"


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_what_is_not_legal_loses_here_too() -> None:
    agree(random_problem(Random(11), 24, 12), 3, illegal=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_a_real_model_is_the_same() -> None:
    agree(instance("ppo_step"), 0)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_it_is_the_environment() -> None:
    problem = instance("ppo_step")
    env = MapGame(problem)
    _, info = env.reset()
    with jax.enable_x64(True):
        rules = rules_of(problem)
        state, play = jax.jit(reset)(rules), jax.jit(step)
        for _ in range(12):
            action = int(np.nonzero(info["action_mask"])[0][0])
            _, reward, _, _, info = env.step(action)
            state, gained = play(rules, state, action)
            assert float(gained) / problem.total == pytest.approx(reward)


def test_integers_of_32_bits_are_refused() -> None:
    with pytest.raises(ProblemError, match=r"ppo_step: .*64 bits\n  JAX is at 32\n.*enable_x64"):
        rules_of(instance("ppo_step"))
