"""Monte-Carlo tree search with the true dynamics: PUCT, with rollouts by the best known game."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.game import PREFERENCES, Action, Game
from recurra.mapping.native import NativeGame
from recurra.mapping.search import Search

EXPLORE = 1.0
Preferences = NDArray[np.uint8]
PREFERRED = 0.6  # the prior of the best known game's action


@dataclass
class _Node:
    visits: int = 0
    value: float = 0.0  # sum of rewards of whole games, of all there is to gain
    children: dict[Action, _Node] = field(default_factory=dict)
    legal: tuple[Action, ...] | None = None


def search_tree(search: Search) -> None:
    """Search buffer by buffer; those with a choice share the remaining time."""
    game, count = search.engine.game(search.flat), len(search.flat.size)
    preferences = np.ones(count, np.uint8)
    search.offer(game.play(preferences), game.solution)
    game.reset()
    while not game.done:
        legal = tuple(game.legal())
        if not legal:
            game.backup()
        elif len(legal) == 1 or not search.running():
            game.step(_preferred_action(legal, int(preferences[game.index])))
        else:
            _simulate(search, game, preferences)
    search.offer(game.reward, game.solution)


def _preferred_action(legal: tuple[Action, ...], preference: int) -> Action:
    return min(legal, key=PREFERENCES[preference].index)


def _simulate(search: Search, game: Game | NativeGame, preferences: Preferences) -> None:
    """Run simulations at one state, then play the action with most visits."""
    here, root = game.index, _Node()
    until = search.spent + (search.seconds - search.spent) / max(1, len(preferences) - here) * 2
    while root.visits < 4 or search.spent < min(until, search.seconds):
        path, node = [root], root
        while not game.done:
            node.legal = node.legal or tuple(game.legal())
            if not node.legal:
                break
            action = _select(node, _preferred_action(node.legal, int(preferences[game.index])))
            game.step(action)
            fresh = action not in node.children
            node = node.children.setdefault(action, _Node())
            path.append(node)
            if fresh:
                break
        reward = 0  # of a game that is lost
        if node.legal != () and game.play_on(preferences):
            reward = game.reward
            search.offer(reward, game.solution)
        for n in path:
            n.visits += 1
            n.value += reward / search.scale
        game.rewind(here)
    best = max(root.children, key=lambda a: root.children[a].visits)
    preferences[here] = int(best)
    game.step(best)


def _select(node: _Node, preferred: Action) -> Action:
    assert node.legal is not None
    values = [c.value / c.visits for c in node.children.values()] or [0.0]
    low, high = min(values), max(values)

    def score(action: Action) -> float:
        child = node.children.get(action)
        prior = PREFERRED if action == preferred else (1 - PREFERRED) / 2
        value = 0.5
        if child is not None and high > low:
            value = (child.value / child.visits - low) / (high - low)
        visits = child.visits if child is not None else 0
        return value + EXPLORE * prior * sqrt(node.visits + 1) / (1 + visits)

    return max(node.legal, key=score)
