"""One pass each: simple keys placed without regard to time, and simple preferences played."""

from __future__ import annotations

import numpy as np

from recurra.mapping.game import PREFERENCES
from recurra.mapping.priority_keys import Floats, keys, ordered
from recurra.mapping.search import Search, solver


@solver
def solve(search: Search) -> None:
    """The best of the four keys and the four preferences; takes milliseconds."""
    place_by_keys(search)
    game = search.engine.game(search.flat)
    for k in range(len(PREFERENCES)):
        game.reset()
        search.offer(game.play(np.full(len(search.flat.size), k)), game.solution)


def place_by_keys(search: Search) -> Floats:
    """Offers one placement per key; the best key, [S]."""
    arranger = search.engine.arranger(search.flat)
    rewards: dict[str, int] = {}
    known = keys(search.flat)
    for name, key in known.items():
        rewards[name] = arranger.arrange(ordered(key))
        search.offer(rewards[name], arranger.current)
    return known[max(rewards, key=lambda n: rewards[n])]
