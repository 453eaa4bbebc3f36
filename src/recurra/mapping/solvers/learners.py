"""Agents as solvers, with the preset for one CPU; `recurra map train` has more to choose."""

from __future__ import annotations

from recurra.mapping.learn.settings import AgentSettings, Planning
from recurra.mapping.search import Search


def muzero(search: Search) -> None:
    """MMap-MuZero (section 4.3): plans with learned dynamics, and learns from what it plays."""
    _learn(search, "learned")


def alphazero(search: Search) -> None:
    """AlphaZero: the network of MMap-MuZero without its dynamics; plans with the game itself."""
    _learn(search, "true")


def play_policy(search: Search) -> None:
    """The paper's ablation (figure 7): learns without planning, and plays by its policy alone."""
    _learn(search, "none")


def _learn(search: Search, planning: Planning) -> None:
    from recurra.mapping.learn.search_by_learning import play_and_learn

    play_and_learn(search, AgentSettings(planning=planning))
