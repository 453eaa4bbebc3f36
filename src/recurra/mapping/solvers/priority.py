"""Evolution strategies on a priority: 14 features of a storage, a weighted sum, one placement."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass
class _PriorityTrials:
    """Weights that were tried by placing everything in their order, and the best of them."""

    search: Search
    seen: Floats  # features [S, FEATURES]
    best: Floats
    reward: int = -(2**62)

    def __post_init__(self) -> None:
        self.arranger = self.search.engine.arranger(self.search.flat)

    def place(self, weights: Floats) -> int:
        """The reward of weights; what they place is offered as a solution."""
        reward = self.arranger.arrange(ordered(self.seen @ weights))
        if reward > self.reward:
            self.best, self.reward = weights, reward
        self.search.offer(reward, self.arranger.current)
        return reward


def best_weights(search: Search, until: float, seen: Floats) -> Floats:
    """The weights [FEATURES] themselves; `seen`: features [S, FEATURES]."""
    trials = _PriorityTrials(search, seen, first_weights())
    trials.place(trials.best)
    mean, deviation = trials.best, START
    while search.running(until):
        noise = search.random.standard_normal((PAIRS, FEATURES))
        noise = np.concatenate([noise, -noise])
        rewards = np.empty(len(noise))
        for k, x in enumerate(noise):
            rewards[k] = trials.place(mean + deviation * x)
            if not search.running(until):
                return trials.best
        ranks = rewards.argsort().argsort() / (len(noise) - 1) - 0.5
        mean = mean + RATE * deviation * 2 * (ranks @ noise) / len(noise)
        deviation = max(LEAST, FADE * deviation)
    return trials.best


def first_weights() -> Floats:
    """The first weights: the gain, over the room that it takes for long."""
    weights = np.zeros(FEATURES)
    weights[:4] = -1, 0.5, 0.5, -1
    return weights
