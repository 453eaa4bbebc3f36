"""Simulated annealing on the game's actions: each move changes a few buffers, or an interval."""

from __future__ import annotations

import numpy as np

from recurra.mapping.search import Search, solver

HOT, COLD = 3e-3, 1e-5  # temperatures, as shares of all there is to gain
Preferences = np.ndarray


@solver
def solve(search: Search) -> None:
    """Anneal from NoCopy wherever it is legal."""
    anneal(search, np.ones(len(search.flat.size), np.uint8), HOT)


def anneal(search: Search, preferences: Preferences, hot: float) -> Preferences:
    """Anneal these preferences in the whole budget; return those of the best game."""
    game, random = search.engine.game(search.flat), search.random
    count = len(search.flat.size)
    best = preferences
    reward = most = game.play(preferences)
    search.offer(reward, game.solution)
    while search.running():
        new = preferences.copy()
        if random.random() < 0.5:
            new[random.integers(0, count, random.integers(1, 5))] = random.integers(0, 4)
        else:
            start, width = random.integers(0, count), random.integers(1, max(2, count // 20) + 1)
            changed = random.random(new[start : start + width].size) < 0.5
            new[start : start + width][changed] = random.integers(0, 4)
        game.reset()
        gained = game.play(new)
        search.offer(gained, game.solution)
        cooled = hot * (COLD / hot) ** min(1.0, search.spent / search.seconds)
        bear = -np.log(random.random()) * cooled * search.scale
        if gained >= reward - bear:
            preferences, reward = new, gained
        if gained > most:
            best, most = new, gained
    return best
