"""Agents that learn in a moment, and programs for them."""

from __future__ import annotations

from random import Random

from random_mappings import random_problem
from recurra.mapping.game import Game
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import Problem

TINY = AgentSettings(
    simulations=3, cells=16, patch=16, channels=(4,), hidden=16, bins=21, lanes=4, segment=3,
    batch=32, updates=2, unroll=1, replay=60, demonstrate=0.001, warmup=1, rounds=5, imitate=0.25,
    learning_rate=3e-3,
)  # fmt: skip


def playable(seed: int) -> Problem:
    """A random problem whose game leaves choices."""
    random = Random(seed)
    while True:
        problem = random_problem(random, 14, random.choice([8, 16]))
        game = Game(flat(problem))
        if problem.total > 0 and game.advance() and len(problem.buffers) > 8:
            return problem
