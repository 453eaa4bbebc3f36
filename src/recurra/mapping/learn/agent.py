"""A search that learns: demonstrations, then rounds of the learner until the time is over.

Only games that the agent played itself are answers, and at first the reference game; what it was
shown is not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from recurra.mapping.learn.actors import ActorsLost
from recurra.mapping.learn.demonstrations import demonstrations
from recurra.mapping.learn.learner import GameLearner
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.search import Search

SAVE_EVERY = 20  # rounds


def play_and_learn(search: Search, settings: AgentSettings, checkpoint: Path | None = None) -> None:
    """Uses the whole budget; goes on from a checkpoint, if there is one, and writes it."""
    game = search.engine.game(search.flat)
    game.play([1] * len(search.flat.size))
    search.offer(game.reward, game.solution)
    game.reset()
    if not game.advance():
        return  # no choice anywhere
    settings = settings.fitted(len(search.flat.size))
    seed = int(search.random.integers(2**31))
    learner = GameLearner(search.flat, search.engine, settings, seed)
    if checkpoint is not None and checkpoint.exists():
        learner.load(checkpoint)
    else:
        learner.show(demonstrations(search, settings))
    try:
        _learn(search, learner, checkpoint)
    except ActorsLost as error:
        print(f"{error}\nthe best answer so far is given", file=sys.stderr, flush=True)
    finally:
        learner.close()


def _learn(search: Search, learner: GameLearner, checkpoint: Path | None) -> None:
    while search.running() and learner.rounds < learner.settings.rounds:
        for played in learner.round():
            search.offer(played.reward, lambda played=played: played.solution)
            if played.reward > learner.best:
                learner.show([played])
        search.elsewhere = learner.elsewhere
        if checkpoint is not None and learner.rounds % SAVE_EVERY == 0:
            learner.save(checkpoint)
    if checkpoint is not None:
        learner.save(checkpoint)
