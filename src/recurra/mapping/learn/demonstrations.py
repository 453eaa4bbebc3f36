"""Games to learn from: toward answers of the default solver, and what annealing makes of them.

An answer without regard to the game's order is played as far as the game lets it; that game's
actions are then annealed.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.learn.acting import FinishedGame, play_preferences, preferences_of
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.search import Search
from recurra.mapping.solvers import solver_of
from recurra.mapping.solvers.annealing import Preferences, anneal
from recurra.storage.mapping_problem import Solution

ARRANGED = 0.3  # of their time: the default solver's
HOT = 1e-3  # of all there is to gain: a good game is not to be melted
APART = 0.002  # of all there is to gain: of games that hardly differ one is enough


def demonstrations(search: Search, settings: AgentSettings) -> list[FinishedGame]:
    """Play demonstrations, at most half as many as games are kept; the best comes last."""
    if not settings.demonstrate:
        return []
    seconds = settings.demonstrate * search.seconds
    start = arranged(search, settings, ARRANGED * seconds)
    preferences = [*start, annealed(search, start[-1], (1 - ARRANGED) * seconds)]
    games = [play_preferences(search.flat, search.engine, x.astype(np.int64)) for x in preferences]
    kept: list[FinishedGame] = []
    for game in sorted(games, key=lambda g: -g.reward):
        if not kept or kept[-1].reward - game.reward > APART * search.scale:
            kept.append(game)
    return kept[: settings.shown // 2][::-1]


def arranged(search: Search, settings: AgentSettings, seconds: float) -> list[Preferences]:
    """Preferences that play toward the default solver's last answers; the best last."""
    found: list[Preferences] = [np.ones(len(search.flat.size), np.uint8)]
    solve, seed = solver_of("default"), int(search.random.integers(2**31))
    told: list[Solution] = []
    solve(search.problem, seconds, seed, lambda *x: told.append(x[2]), search.engine)
    found += [preferences_of(x).astype(np.uint8) for x in told[-settings.shown :]]
    game = search.engine.game(search.flat)

    def worth(preferences: Preferences) -> int:
        game.reset()
        return game.play(preferences)

    return sorted(found, key=worth)


def annealed(search: Search, preferences: Preferences, seconds: float) -> Preferences:
    """The best preferences that annealing finds from these."""
    seed = int(search.random.integers(2**31))
    return anneal(Search(search.problem, seconds, seed, None, search.engine), preferences, HOT)
