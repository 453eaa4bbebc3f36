"""Evolution strategies on the game's actions (Salimans et al. 2017): the paper's other baseline.

Each buffer has three scores; the largest selects the preference that is played.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.search import Search, solver

PAIRS, DEVIATION, RATE = 8, 1.0, 0.5


@solver
def solve(search: Search) -> None:
    """Evolve the scores with antithetic pairs, and ranks in place of rewards."""
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
