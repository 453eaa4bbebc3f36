"""Evolution strategies on the weights of a priority, a sum of 14 features of a storage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recurra.mapping.priority_keys import FEATURES, Floats, features, ordered
from recurra.mapping.search import Search

PAIRS = 8
START, LEAST, FADE, RATE = 0.5, 0.05, 0.985, 1.5


def evolve(search: Search, until: float = 1.0) -> Floats:
    """Search in this share of the budget; return the priorities [S] of the best weights."""
    inputs = features(search.flat)
    return inputs @ best_weights(search, until, inputs)


@dataclass
class _PriorityTrials:
    """Trials of weights, each of which places everything, and the best weights so far."""

    search: Search
    inputs: Floats  # features [S, FEATURES]
    best: Floats
    reward: int = -(2**62)

    def __post_init__(self) -> None:
        self.arranger = self.search.engine.arranger(self.search.flat)

    def place(self, weights: Floats) -> int:
        """Place by weights, and offer the solution; return the reward."""
        reward = self.arranger.arrange(ordered(self.inputs @ weights))
        if reward > self.reward:
            self.best, self.reward = weights, reward
        self.search.offer(reward, self.arranger.current)
        return reward


def best_weights(search: Search, until: float, inputs: Floats) -> Floats:
    """Return the best weights [FEATURES] found for the features [S, FEATURES]."""
    trials = _PriorityTrials(search, inputs, first_weights())
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
    """Return initial weights: the gain, over size and life."""
    weights = np.zeros(FEATURES)
    weights[:4] = -1, 0.5, 0.5, -1
    return weights
