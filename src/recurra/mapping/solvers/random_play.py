"""Random legal actions, with Drop-backup; the best of as many games as there is time for."""

from __future__ import annotations

from recurra.mapping.search import Search, solver


@solver
def solve(search: Search) -> None:
    """Play random games until the time is over."""
    game = search.engine.game(search.flat)
    while True:
        draws = search.random.integers(0, 6, 4 * len(search.flat.size) + 1)
        game.reset()
        game.play_random(draws)
        search.offer(game.reward, game.solution)
        if not search.running():
            return
