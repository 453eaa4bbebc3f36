"""A search that learns: demonstrations, then rounds of the learner until the time is over.

Its answers are the reference game at first, and then games that the agent itself has played, never
demonstrations.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recurra.mapping.learn.settings import COMPILING, AgentSettings
from recurra.mapping.search import Search
from recurra.support.interrupts import interrupt_calls
from recurra.support.notices import tell_once

if TYPE_CHECKING:
    from recurra.mapping.learn.learner import GameLearner

SAVE_EVERY = 20  # rounds
LEAST = 2.5 * COMPILING  # seconds in which JAX starts, compiles two functions and plays a round


def play_and_learn(search: Search, settings: AgentSettings, checkpoint: Path | None = None) -> None:
    """Learn for the whole budget, from a checkpoint if it exists, and write it.

    The first Ctrl-C ends it after the current round, the next one at once.
    """
    game = search.engine.game(search.flat)
    game.play([1] * len(search.flat.size))
    search.offer(game.reward, game.solution)
    game.reset()
    if not game.advance():
        return  # no choice anywhere
    if search.seconds < LEAST:
        tell_once(
            f"{search.seconds:g} s are too few for an agent to learn: the answer is the game that "
            f"keeps what it can where it is; compiling the agent alone takes some {LEAST:g} s"
        )
        return
    with interrupt_calls(partial(_stop, search)):
        _play_and_learn(search, settings.scaled_to(len(search.flat.size)), checkpoint)


def _stop(search: Search) -> None:
    search.stop()
    print("interrupted: after this round; once more: at once", file=sys.stderr, flush=True)


def _play_and_learn(search: Search, settings: AgentSettings, checkpoint: Path | None) -> None:
    from recurra.mapping.learn.actors import ActorsLost
    from recurra.mapping.learn.demonstrations import demonstrations
    from recurra.mapping.learn.learner import GameLearner

    seed = int(search.random.integers(2**31))

    def left() -> float:
        return search.seconds - search.spent

    learner = GameLearner(search.flat, search.engine, settings, seed, left)
    if checkpoint is not None and checkpoint.exists():
        learner.load(checkpoint)
    else:
        learner.add_demonstrations(demonstrations(search, settings))
    try:
        _learn(search, learner, checkpoint)
    except ActorsLost as error:
        print(f"{error}\nthe best answer so far is given", file=sys.stderr, flush=True)
        if checkpoint is not None:
            learner.save(checkpoint)
    finally:
        learner.close()


def _learn(search: Search, learner: GameLearner, checkpoint: Path | None) -> None:
    while search.running() and learner.rounds < learner.settings.rounds:
        before = learner.rounds
        for game in learner.round():
            search.offer(game.reward, lambda game=game: game.solution)
            if learner.rounds > before and game.reward > learner.best:
                learner.add_demonstrations([game])
        search.worker_seconds = learner.worker_seconds
        if checkpoint is not None and learner.rounds % SAVE_EVERY == 0:
            learner.save(checkpoint)
    if checkpoint is not None:
        learner.save(checkpoint)
