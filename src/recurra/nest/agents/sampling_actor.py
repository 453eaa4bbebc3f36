"""Walker: an actor of learners that draw their actions; and what they learn from of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from recurra.nest.agents.actors import ActorTask, Answer
from recurra.nest.agents.vector_env import Floats, Trajectories, World, by_chance


class Walker:
    """Whole episodes, `settings.batch` at a time; actions are drawn by the weights it is told."""

    def __init__(self, world: World, task: ActorTask) -> None:
        self.world, self.batch = world, task.settings.batch
        self.random = np.random.default_rng(task.seed)

    def walk(self, weights: Any) -> Trajectories:
        starts = self.world.drawn(self.batch, self.random)
        return self.world.rollout(starts, by_chance(weights), self.random)

    def work(self, weights: Any) -> Answer:
        t = self.walk(weights)
        return dict(states=t.states, actions=t.actions, rewards=t.rewards, chances=t.chances)


def joined(answers: Sequence[Answer]) -> dict[str, Any]:
    """Episodes of several answers side by side."""
    return {name: np.concatenate([a[name] for a in answers], axis=1) for name in answers[0]}


def example(world: World, found: Answer) -> dict[str, Any]:
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
