"""Demonstration games: toward answers of the default solver, then improved by annealing.

A game follows an order-free answer as far as its rules allow; the actions of the best game are then
annealed.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.learn.acting import FinishedGame, play_preferences, preferences_of
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.search import Search
from recurra.mapping.solvers import solver_of
from recurra.mapping.solvers.game_search import Preferences, anneal
from recurra.storage.mapping_problem import Solution

ARRANGED = 0.3  # the default solver's share of the time
HOT = 1e-3  # the initial temperature, as a share of all there is to gain: low, as games are good
APART = 0.002  # the least difference of kept games' rewards, as a share of all there is to gain


def demonstrations(search: Search, settings: AgentSettings) -> list[FinishedGame]:
    """Play demonstrations, at most half of `settings.shown`; the best comes last."""
    if not settings.demonstrate:
        return []
    seconds = settings.demonstrate * search.seconds
    start = default_solver_preferences(search, settings, ARRANGED * seconds)
    seed = int(search.random.integers(2**31))
    budget = Search(search.problem, (1 - ARRANGED) * seconds, seed, None, search.engine)
    preferences = [*start, anneal(budget, start[-1], HOT)]
    games = [play_preferences(search.flat, search.engine, x.astype(np.int64)) for x in preferences]
    kept: list[FinishedGame] = []
    for game in sorted(games, key=lambda g: -g.reward):
        if not kept or kept[-1].reward - game.reward > APART * search.scale:
            kept.append(game)
    return kept[: settings.shown // 2][::-1]


def default_solver_preferences(
    search: Search, settings: AgentSettings, seconds: float
) -> list[Preferences]:
    """Return preferences that play toward the default solver's last answers; the best last."""
    found: list[Preferences] = [np.ones(len(search.flat.size), np.uint8)]
    solve, seed = solver_of("default"), int(search.random.integers(2**31))
    answers: list[Solution] = []
    solve(search.problem, seconds, seed, lambda *x: answers.append(x[2]), search.engine)
    found += [preferences_of(x).astype(np.uint8) for x in answers[-settings.shown :]]
    game = search.engine.game(search.flat)

    def reward(preferences: Preferences) -> int:
        game.reset()
        return game.play(preferences)

    return sorted(found, key=reward)
