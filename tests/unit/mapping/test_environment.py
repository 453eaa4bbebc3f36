"""The Gymnasium environment: its contract, its rewards, and what it shows."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mapping.test_game import MADE, program
from random_mappings import random_problem
from recurra.mapping.environment import GRID, MapGame
from recurra.mapping.model_library import instance
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import ProblemError

READ = replace(MADE, is_output=False, target_time=3)


def test_the_contract_is_kept() -> None:
    check_env(MapGame(instance("ppo_step")), skip_render_check=True)


@pytest.mark.parametrize("backup", [True, False])
def test_returns_are_rewards(backup: bool) -> None:
    for k in range(40):
        random = Random(k)
        problem = random_problem(random, 12)
        if problem.total <= 0:
            continue
        env = MapGame(problem, backup=backup)
        observation, info = env.reset(seed=k)
        total, done = 0.0, False
        while not done:
            assert env.observation_space.contains(observation)
            legal = np.nonzero(info["action_mask"])[0].tolist()
            observation, reward, done, _, info = env.step(random.choice(legal))
            total += reward
        if info.get("lost"):
            assert total <= 1e-6
            assert not backup
        else:
            assert validate(problem, env.game.solution()) == info["reward_ps"]
            assert total == pytest.approx(info["reward_ps"] / problem.total)


def test_what_is_not_legal_loses_the_game() -> None:
    env = MapGame(program(MADE, READ))
    _, info = env.reset()
    assert info["action_mask"].tolist() == [1, 1, 1]
    _, reward, done, _, info = env.step(1)
    assert (reward, done) == (0.5, False)
    assert info["action_mask"].tolist() == [0, 1, 0]
    _, reward, done, _, info = env.step(2)
    assert (reward, done, info["lost"]) == (-0.5, True, True)


def test_the_memory_map_shows_what_is_placed() -> None:
    env = MapGame(program(MADE, READ))
    env.reset()
    observation = env.step(1)[0]
    middle = GRID // 2  # step 3, of the buffer that is next; 4 of 8 bytes from step 1 to 5
    shown = np.nonzero(observation["memory"].any(0))[0]
    assert (shown[0], shown[-1]) == (middle - 2, middle + 2)
    assert observation["profile"].sum() == GRID // 2
    assert observation["supply"][middle] == 1.0


def test_nothing_to_gain_is_refused() -> None:
    worthless = replace(MADE, benefit=0)
    with pytest.raises(ProblemError, match="program: there is nothing to gain"):
        MapGame(program(worthless))
