"""Simulated annealing on the game's actions: a few buffers, or a stretch of them, change."""

from __future__ import annotations

import numpy as np

from recurra.mapping.search import Search, solver

HOT, COLD = 3e-3, 1e-5  # temperatures, of all that there is to gain
Wishes = np.ndarray


@solver
def solve(search: Search) -> None:
    """Anneal from NoCopy wherever it can be."""
    anneal(search, np.ones(len(search.flat.size), np.uint8), HOT)


def anneal(search: Search, wishes: Wishes, hot: float) -> Wishes:
    """Uses the whole budget, from the game that these preferences play; those of the best game."""
    game, random = search.engine.game(search.flat), search.random
    count = len(search.flat.size)
    best = wishes
    reward = most = game.play(wishes)
    search.offer(reward, game.solution)
    while search.running():
        new = wishes.copy()
        if random.random() < 0.5:
            new[random.integers(0, count, random.integers(1, 5))] = random.integers(0, 4)
        else:
            start, width = random.integers(0, count), random.integers(1, max(2, count // 20) + 1)
            some = random.random(new[start : start + width].size) < 0.5
            new[start : start + width][some] = random.integers(0, 4)
        game.reset()
        gained = game.play(new)
        search.offer(gained, game.solution)
        cooled = hot * (COLD / hot) ** min(1.0, search.spent / search.seconds)
        bear = -np.log(random.random()) * cooled * search.scale
        if gained >= reward - bear:
            wishes, reward = new, gained
        if gained > most:
            best, most = new, gained
    return best
