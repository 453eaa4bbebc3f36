"""The greedy solver: storages placed once by each simple key, and games by simple preferences."""

from __future__ import annotations

import numpy as np

from recurra.mapping.game import PREFERENCES
from recurra.mapping.priority_keys import Floats, keys, ordered
from recurra.mapping.search import Search, solver


@solver
def solve(search: Search) -> None:
    """Take the best of the four keys and the four preferences, in milliseconds."""
    place_by_keys(search)
    game = search.engine.game(search.flat)
    for k in range(len(PREFERENCES)):
        game.reset()
        search.offer(game.play(np.full(len(search.flat.size), k)), game.solution)


def place_by_keys(search: Search) -> Floats:
    """Offer one placement per key; return the best key, [S]."""
    arranger = search.engine.arranger(search.flat)

    def place(key: Floats) -> int:
        reward = arranger.arrange(ordered(key))
        search.offer(reward, arranger.current)
        return reward

    return max(keys(search.flat).values(), key=place)
