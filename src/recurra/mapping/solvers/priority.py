"""Evolution strategies on a priority: 14 features of a storage, a weighted sum, one placement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from recurra.mapping.keys import FEATURES, Floats, features, ordered
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
    evolution(best, place, search.random, lambda: search.running(until))
    return seen @ best


def evolution(
    first: Floats, value: Callable[[Floats], float], random: Generator, running: Callable[[], bool]
) -> Floats:
    """Where evolution strategies went from the `first` weights, towards larger values."""
    mean, deviation = first, START
    while running():
        noise = random.standard_normal((PAIRS, len(first)))
        noise = np.concatenate([noise, -noise])
        values = np.empty(len(noise))
        for k, x in enumerate(noise):
            values[k] = value(mean + deviation * x)
            if not running():
                return mean
        ranks = values.argsort().argsort() / (len(noise) - 1) - 0.5
        mean = mean + RATE * deviation * 2 * (ranks @ noise) / len(noise)
        deviation = max(LEAST, FADE * deviation)
    return mean


def first_weights() -> Floats:
    """What gains, over what takes room for long."""
    weights = np.zeros(FEATURES)
    weights[:4] = -1, 0.5, 0.5, -1
    return weights
