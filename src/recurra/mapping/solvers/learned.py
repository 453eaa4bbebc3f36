"""Learned priorities: weights that were evolved for other programs, then some that are near.

What takes time is placing: the vectors are tried in the order in which they add most, until 50 ms
are over; a small program leaves time for changes of the best of them. To compare them, only the
tensors are placed that matter.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from recurra.mapping.priority_keys import Floats, ordered, shared_features, weighty
from recurra.mapping.search import Search, solver

SECONDS = 0.05
SHIPPED = Path(__file__).parents[1] / "priorities.json"
ANSWER = 1e-6  # seconds per buffer that it takes to write the answer down, once
MATTERS = 0.97  # of all that tensors gain: what those gain together that are placed to compare


@cache
def shipped() -> Floats:
    """[K, UNITS * FEATURES] in the order in which they are tried."""
    return np.array(json.loads(SHIPPED.read_text())["weights"])


@solver
def solve(search: Search) -> None:
    """One placement per vector of weights."""
    place_by_weights(search, shipped())


def place_by_weights(search: Search, known: Floats) -> int:
    """Tries known vectors [V, UNITS * FEATURES], then near ones; how many were tried."""
    entered = search.spent
    arranger, seen = search.engine.arranger(search.flat), shared_features(search.flat)
    some = weighty(search.flat, MATTERS)
    few = seen[some]
    best, best_reward, tried, took = known[0], -(2**62), 0, 0.0
    enough = entered + SECONDS - ANSWER * len(search.flat.size)
    begun = search.spent
    try:
        arranger.arrange(ordered(seen @ best))
        enough -= search.spent - begun  # what the last one will take
        while search.running() and search.spent + took < enough:
            begun = search.spent
            weights = known[tried] if tried < len(known) else _near(search, best)
            reward = arranger.arrange(some[ordered(few @ weights)])
            tried += 1
            if reward > best_reward:
                best, best_reward = weights, reward
            took = search.spent - begun
        arranger.arrange(ordered(seen @ best))
    finally:
        search.offer(arranger.best, arranger.solution)
    return tried


def _near(search: Search, weights: Floats) -> Floats:
    """Small changes more often than large ones."""
    spread = 10 ** search.random.uniform(-1.5, 0.0)
    return weights + spread * search.random.standard_normal(len(weights))
