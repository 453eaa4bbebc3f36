"""Searches over games: random play, evolution strategies, and simulated annealing.

Evolution and annealing search a preference for each buffer, by which the game is played.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.search import Search

HOT, COLD = 3e-3, 1e-5  # temperatures of annealing, as shares of all there is to gain
PAIRS, DEVIATION, RATE = 8, 1.0, 0.5  # of evolution
Preferences = np.ndarray


def play_randomly(search: Search) -> None:
    """Play random games with Drop-backup until the time is over."""
    game = search.engine.game(search.flat)
    while True:
        draws = search.random.integers(0, 6, 4 * len(search.flat.size) + 1)
        game.reset()
        game.play_random(draws)
        search.offer(game.reward, game.solution)
        if not search.running():
            return


def evolve(search: Search) -> None:
    """Evolve three scores per buffer, the paper's other baseline (Salimans et al. 2017).

    The largest score is the preference. Noise comes in antithetic pairs, and ranks replace rewards.
    """
    game = search.engine.game(search.flat)
    mean = np.zeros((len(search.flat.size), 3), np.float32)
    mean[:, 1] = 0.5  # at first NoCopy is a little more likely

    def play(scores: np.ndarray) -> int:
        game.reset()
        reward = game.play(scores.argmax(1))
        search.offer(reward, game.solution)
        return reward

    play(mean)
    while search.running():
        noise = search.random.standard_normal((PAIRS, *mean.shape), np.float32)
        rewards = np.array([play(mean + x) for half in (noise, -noise) for x in half])
        ranks = rewards.argsort().argsort() / (2 * PAIRS - 1) - 0.5
        step = np.tensordot((ranks[:PAIRS] - ranks[PAIRS:]).astype(np.float32), noise, 1)
        mean += RATE * step / DEVIATION


def anneal_from_nocopy(search: Search) -> None:
    """Anneal from NoCopy wherever it is legal."""
    anneal(search, np.ones(len(search.flat.size), np.uint8), HOT)


def anneal(search: Search, preferences: Preferences, hot: float) -> Preferences:
    """Anneal these preferences in the whole budget; return those of the best game.

    Each move changes the preferences of a few buffers, or of some in an interval.
    """
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
