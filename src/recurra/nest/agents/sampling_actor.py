"""Walker: an actor of learners that draw their actions; and what they learn from of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from recurra.nest.agents.actors import ActorTask, Answer, PoolSettings
from recurra.nest.agents.policy import Weights
from recurra.nest.agents.vector_env import Floats, Trajectories, World, by_chance


class EpisodeSettings(PoolSettings, Protocol):
    """The settings of an actor of whole episodes."""

    @property
    def batch(self) -> int:
        """Episodes of an answer"""
        ...


Episodes = TypeVar("Episodes", bound=EpisodeSettings)


class Walker(Generic[Episodes]):
    """Whole episodes, `settings.batch` at a time; actions are drawn by the weights it is told."""

    def __init__(self, world: World, task: ActorTask[Episodes]) -> None:
        self.world, self.batch = world, task.settings.batch
        self.random = np.random.default_rng(task.seed)

    def walk(self, weights: Weights) -> Trajectories:
        starts = self.world.drawn(self.batch, self.random)
        return self.world.rollout(starts, by_chance(weights), self.random)

    def work(self, weights: Weights) -> Answer:
        t = self.walk(weights)
        return dict(states=t.states, actions=t.actions, rewards=t.rewards, chances=t.chances)


def joined(answers: Sequence[Answer]) -> dict[str, np.ndarray]:
    """Episodes of several answers side by side."""
    return {name: np.concatenate([a[name] for a in answers], axis=1) for name in answers[0]}


def example(world: World, found: Answer) -> dict[str, np.ndarray]:
    """[steps, episodes] of everything that is learned from; `rest` is what is still earned."""
    steps, count = found["states"].shape
    left = np.repeat(np.arange(steps, 0, -1), count)
    flat = found["states"].reshape(-1)
    rewards: Floats = found["rewards"]
    return {
        "seen": world.observed(flat, left).reshape(steps, count, -1),
        "legal": world.legal[flat].reshape(steps, count, -1),
        "action": found["actions"],
        "chance": found["chances"],
        "reward": rewards,
        "rest": np.cumsum(rewards[::-1], axis=0)[::-1],
    }
