"""Evolution strategies on the game's actions (Salimans et al. 2017): the paper's other baseline.

Three numbers per buffer; the largest says which preference is played.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.search import Search, solver

PAIRS, DEVIATION, RATE = 8, 1.0, 0.5


@solver
def solve(search: Search) -> None:
    """Antithetic pairs, ranks for rewards."""
    game = search.engine.game(search.flat)
    mean = np.zeros((len(search.flat.size), 3), np.float32)
    mean[:, 1] = 0.5  # at first NoCopy is a little more likely

    def play(numbers: np.ndarray) -> int:
        game.reset()
        reward = game.play(numbers.argmax(1))
        search.offer(reward, game.solution)
        return reward

    play(mean)
    while search.running():
        noise = search.random.standard_normal((PAIRS, *mean.shape), np.float32)
        rewards = np.array([play(mean + x) for half in (noise, -noise) for x in half])
        ranks = rewards.argsort().argsort() / (2 * PAIRS - 1) - 0.5
        step = np.tensordot((ranks[:PAIRS] - ranks[PAIRS:]).astype(np.float32), noise, 1)
        mean += RATE * step / DEVIATION
