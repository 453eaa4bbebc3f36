"""Environments of Gymnasium whose episodes are noted by a wrapper, whoever steps them.

name = recorded("CartPole-v1")     an id like any other
...                                somebody makes environments of it, and learns
episodes()                         [(steps of all environments by then, return), ..]
"""

from __future__ import annotations

from typing import Any

import gymnasium

NAMESPACE = "recorded"
LAST = 100  # episodes whose mean return is the score, as CleanRL reports it

Episode = tuple[int, float]  # steps of all environments when it ended, its return


class Noted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the episodes of its environment to those of all in this process."""

    found: list[Episode] = []  # noqa: RUF012 (of all environments)
    steps = 0

    def reset(self, **options: Any) -> Any:
        self.so_far = 0.0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        o, reward, term, trunc, info = self.env.step(action)
        Noted.steps += 1
        self.so_far += float(reward)
        if term or trunc:
            Noted.found.append((Noted.steps, self.so_far))
        return o, reward, term, trunc, info


def recorded(env: str) -> str:
    """The id of an environment like `env`, with nothing noted yet."""
    name = f"{NAMESPACE}/{env}"
    if name not in gymnasium.registry:

        def make(**options: Any) -> Any:
            return Noted(gymnasium.make(env, disable_env_checker=True, **options))

        gymnasium.register(name, make, disable_env_checker=True)
    Noted.found, Noted.steps = [], 0
    return name


def episodes() -> list[Episode]:
    """Those that have ended since `recorded` was called."""
    return list(Noted.found)


def steps() -> int:
    """Of all environments since `recorded` was called."""
    return Noted.steps
