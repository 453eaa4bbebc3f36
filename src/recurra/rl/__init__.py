"""Reinforcement learning: environments, algorithms, training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recurra.rl import env, train
    from recurra.rl.actor_critic import ActorCritic
    from recurra.rl.policy import SavedPolicy, load
    from recurra.rl.returns import episode_returns, explained_variance, normalize, rows
    from recurra.rl.stacking import frames


_RENAMED = {
    "episodic": "episode_returns",
    "normalise": "normalize",
    "Policy": "SavedPolicy",
}


def __getattr__(name: str) -> object:
    match name:
        case "env" | "train":
            return importlib.import_module(f"recurra.rl.{name}")
        case "frames":
            return importlib.import_module("recurra.rl.stacking").frames
        case "episode_returns" | "explained_variance" | "normalize" | "rows":
            return getattr(importlib.import_module("recurra.rl.returns"), name)
        case "SavedPolicy" | "load":
            return getattr(importlib.import_module("recurra.rl.policy"), name)
        case "ActorCritic":
            return importlib.import_module("recurra.rl.actor_critic").ActorCritic
        case _:
            importlib.import_module("recurra.frontend.tensor")  # the table of operators
            words = importlib.import_module("recurra.frontend.foreign_names")
            return words.only("recurra.rl", __all__, _RENAMED, __name__)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ActorCritic",
    "SavedPolicy",
    "env",
    "episode_returns",
    "explained_variance",
    "frames",
    "load",
    "normalize",
    "rows",
    "train",
]
