"""SamplingActor: an actor that samples its actions, and the training batch of its episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from recurra.nest.agents.actors import ActorTask, Answer, PoolSettings
from recurra.nest.agents.policy import Weights
from recurra.nest.agents.vector_env import Floats, VectorEnv, sample_actions
from recurra.support.workers.supervisor import Where


class EpisodeSettings(PoolSettings, Protocol):
    """The settings of an actor of whole episodes; `batch` of them make an answer."""

    @property
    def batch(self) -> int: ...


@dataclass(frozen=True)
class ActorCriticSettings:
    """The settings of A3C and IMPALA."""

    rounds: int = 5000
    actors: int = 4
    pool: Where = "processes"
    address: str | None = field(default=None, repr=False)
    """Address of the Ray cluster of the pool ray; by default a new one on this machine"""
    batch: int = 32
    """Episodes of an answer"""
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    entropy: float = 0.01
    critic: float = 0.5
    seed: int = 0


Episodes = TypeVar("Episodes", bound=EpisodeSettings)


class SamplingActor(Generic[Episodes]):
    """An actor of whole episodes, `settings.batch` at a time, by the weights of each request."""

    def __init__(self, env: VectorEnv, task: ActorTask[Episodes]) -> None:
        self.env, self.batch = env, task.settings.batch
        self.random = np.random.default_rng(task.seed)

    def work(self, weights: Weights) -> Answer:
        starts = self.env.draw_starts(self.batch, self.random)
        t = self.env.rollout(starts, sample_actions(weights), self.random)
        return dict(states=t.states, actions=t.actions, rewards=t.rewards, chances=t.chances)


def concatenated(answers: Sequence[Answer]) -> dict[str, np.ndarray]:
    """Return the episodes of several answers side by side."""
    return {name: np.concatenate([a[name] for a in answers], axis=1) for name in answers[0]}


def flattened(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the axes [steps, episodes] of all arrays."""
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in batch.items()}


def training_batch(env: VectorEnv, answer: Answer) -> dict[str, np.ndarray]:
    """Return arrays [steps, episodes, ..] to learn from; `rest` is the return from each step on."""
    steps, count = answer["states"].shape
    left = np.repeat(np.arange(steps, 0, -1), count)
    flat = answer["states"].reshape(-1)
    rewards: Floats = answer["rewards"]
    return {
        "observations": env.observe(flat, left).reshape(steps, count, -1),
        "legal": env.legal[flat].reshape(steps, count, -1),
        "action": answer["actions"],
        "chance": answer["chances"],
        "reward": rewards,
        "rest": np.cumsum(rewards[::-1], axis=0)[::-1],
    }
