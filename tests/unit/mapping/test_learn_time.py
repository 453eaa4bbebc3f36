"""Agents keep their time: what was begun is left or gone on with, and nothing of it is lost."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from recurra.mapping import engine_choice
from recurra.mapping.game import Game
from recurra.mapping.learn.acting import play_preferences
from recurra.mapping.learn.actors import ActorRequest, LocalActor
from recurra.mapping.learn.learner import GameLearner
from recurra.mapping.learn.network import initial
from recurra.mapping.learn.network_inputs import program_features
from recurra.mapping.model_library import instance
from recurra.mapping.solvers import LEARNERS, solver_of
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.support.notices import tell_once
from small_agents import TINY, playable

PYTHON = engine_choice.engine("python")


@pytest.mark.parametrize("name", LEARNERS)
def test_agents_that_have_no_time_to_learn_say_so(name: str, capsys: Any) -> None:
    problem = instance("ppo_step")
    tell_once.cache_clear()
    begun = time.process_time()
    answer = solver_of(name)(problem, 0.3, 0, None, PYTHON)
    assert time.process_time() - begun < 1
    game = Game(flat(problem))
    assert validate(problem, answer) == game.play([1] * len(problem.buffers))
    assert "0.3 s are too few for an agent to learn" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_a_round_ends_with_its_time_and_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    f, path = flat(playable(4)), tmp_path / "checkpoint.npz"
    s = replace(TINY, warmup=3, updates=4)
    shown = [play_preferences(f, PYTHON, np.ones(len(f.size), int))]
    done, part = 0, GameLearner(f, PYTHON, s, 7)
    for calls in count(1):  # every check of the time is once the last one
        checks = iter(range(calls % 9))
        part = GameLearner(
            f, PYTHON, s, 7, lambda checks=checks: 0.0 if next(checks, None) is None else 1e9
        )
        part.add_demonstrations(shown)
        if path.exists():
            part.load(path)
        before = part.rounds
        part.round()
        assert part.rounds <= before + 1
        part.save(path)
        done = calls
        if part.rounds >= 3 and not part.pending_updates:
            break
    assert done > part.rounds
    whole = GameLearner(f, PYTHON, s, 7)
    whole.add_demonstrations(shown)
    for _ in range(part.rounds):
        whole.round()
    for a, b in zip(jax.tree.leaves(whole.state()), jax.tree.leaves(part.state()), strict=True):
        if not isinstance(a, np.random.Generator):
            assert np.array_equal(a, b)
    assert whole.random.random() == part.random.random()


def test_what_is_played_in_part_is_not_kept() -> None:
    f = flat(playable(4))
    actor = LocalActor(f, PYTHON, replace(TINY, planning="none"), 0)
    weights = initial(TINY, program_features(f), 0)
    before = copy.deepcopy(actor.state())
    actor.answer(ActorRequest(weights, 1.0))
    assert str(actor.state()) != str(before)
    before = copy.deepcopy(actor.state())
    assert actor.answer(ActorRequest(weights, 1.0, 0.0)).segments is None
    assert jax.tree.all(
        jax.tree.map(lambda a, b: np.array_equal(a, b), *map(lanes_of, (before, actor.state())))
    )


def lanes_of(state: Any) -> Any:
    return {**state["lanes"], "random": state["random"].random()}
