"""Learned priorities: weights that were evolved for other programs, then variations of them.

Placing takes most of the time: the vectors are tried in the order in which they add most, until
50 ms are over; in a small program there is time to vary the best of them. To compare vectors, only
the most valuable storages are placed.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from recurra.mapping.priority_keys import Floats, most_valuable, ordered, shared_features
from recurra.mapping.search import Search

SECONDS = 0.05
SHIPPED = Path(__file__).parents[1] / "priorities.json"
ANSWER = 1e-6  # seconds per buffer for building the solution
MATTERS = 0.97  # the share of the gain of all storages that the compared ones have


@cache
def bundled_weights() -> Floats:
    """Return the weights [K, UNITS * FEATURES] in the order in which they are tried."""
    return np.array(json.loads(SHIPPED.read_text())["weights"])


def place_by_weights(search: Search, known: Floats | None = None) -> int:
    """Try known vectors [V, UNITS * FEATURES], then variations; return how many were tried.

    By default the vectors are those that come with the package.
    """
    known = bundled_weights() if known is None else known
    start = search.spent
    arranger, inputs = search.engine.arranger(search.flat), shared_features(search.flat)
    compared = most_valuable(search.flat, MATTERS)
    compared_inputs = inputs[compared]
    best, best_reward, tried, duration = known[0], -(2**62), 0, 0.0
    deadline = start + SECONDS - ANSWER * len(search.flat.size)
    start = search.spent
    try:
        arranger.arrange(ordered(inputs @ best))
        deadline -= search.spent - start  # the time of the last placement
        while search.running() and search.spent + duration < deadline:
            start = search.spent
            weights = known[tried] if tried < len(known) else _vary(search, best)
            reward = arranger.arrange(compared[ordered(compared_inputs @ weights)])
            tried += 1
            if reward > best_reward:
                best, best_reward = weights, reward
            duration = search.spent - start
        arranger.arrange(ordered(inputs @ best))
    finally:
        search.offer(arranger.best, arranger.solution)
    return tried


def _vary(search: Search, weights: Floats) -> Floats:
    """Change weights, more often a little than much."""
    spread = 10 ** search.random.uniform(-1.5, 0.0)
    return weights + spread * search.random.standard_normal(len(weights))
