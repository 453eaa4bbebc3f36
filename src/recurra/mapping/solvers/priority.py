"""Evolution strategies on a priority: 14 features of a storage, a weighted sum, one placement."""

from __future__ import annotations

import numpy as np

from recurra.mapping.priority_keys import FEATURES, Floats, features, ordered
from recurra.mapping.search import Search, solver

PAIRS = 8
START, LEAST, FADE, RATE = 0.5, 0.05, 0.985, 1.5


@solver
def solve(search: Search) -> None:
    """Searches for weights until the time is over."""
    evolve(search, 1.0)


def evolve(search: Search, until: float) -> Floats:
    """Uses this part of the budget; the priorities [S] of the best weights."""
    seen = features(search.flat)
    return seen @ best_weights(search, until, seen)


def best_weights(search: Search, until: float, seen: Floats) -> Floats:
    """The weights [FEATURES] themselves; `seen`: features [S, FEATURES]."""
    arranger = search.engine.arranger(search.flat)
    best, best_reward = first_weights(), -(2**62)

    def place(weights: Floats) -> int:
        nonlocal best, best_reward
        reward = arranger.arrange(ordered(seen @ weights))
        if reward > best_reward:
            best, best_reward = weights, reward
        search.offer(reward, arranger.current)
        return reward

    place(best)
    mean, deviation = best, START
    while search.running(until):
        noise = search.random.standard_normal((PAIRS, FEATURES))
        noise = np.concatenate([noise, -noise])
        rewards = np.empty(len(noise))
        for k, x in enumerate(noise):
            rewards[k] = place(mean + deviation * x)
            if not search.running(until):
                return best
        ranks = rewards.argsort().argsort() / (len(noise) - 1) - 0.5
        mean = mean + RATE * deviation * 2 * (ranks @ noise) / len(noise)
        deviation = max(LEAST, FADE * deviation)
    return best


def first_weights() -> Floats:
    """What gains, over what takes room for long."""
    weights = np.zeros(FEATURES)
    weights[:4] = -1, 0.5, 0.5, -1
    return weights
