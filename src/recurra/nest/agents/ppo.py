"""PPO (Schulman et al., 2017): all actors act by one policy, which then learns from all episodes.

The probability ratio of an action is clipped; generalized advantages come from the critic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from recurra.nest.agents import network
from recurra.nest.agents.learning import Distributed, Trainer
from recurra.nest.agents.network import AdamState, JaxWeights
from recurra.nest.agents.policy import dueling_heads
from recurra.nest.agents.sampling_actor import (
    SamplingActor,
    concatenated,
    flattened,
    training_batch,
)
from recurra.nest.agents.vector_env import Floats
from recurra.support.workers.supervisor import Where


@dataclass(frozen=True)
class PpoSettings:
    """The settings of PPO: a round is an answer of every actor, learned from `epochs` times."""

    rounds: int = 600
    actors: int = 4
    pool: Where = "turns"
    address: str | None = field(default=None, repr=False)
    """Address of the Ray cluster of the pool ray; by default a new one on this machine"""
    batch: int = 64
    """Episodes per answer"""
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    epochs: int = 4
    parts: int = 4
    """Minibatches of an epoch"""
    clip: float = 0.2
    smooth: float = 0.95
    """λ of generalized advantages"""
    entropy: float = 0.01
    critic: float = 0.5
    seed: int = 0


class PpoLearner(Distributed[PpoSettings]):
    """The learner and its actors, which wait for each other."""

    actor = SamplingActor

    def update(self, done: int) -> Floats:
        s = self.settings
        self.actors.begin(self.weights)
        answers = dict(self.actors.answer() for _ in range(s.actors))
        found = concatenated([answers[who] for who in range(s.actors)])
        self.steps += found["states"].size
        x = training_batch(self.env, found)
        x["advantage"], x["goal"] = self.advantages_and_goals(x)
        flat = flattened(x)
        rate = s.learning_rate * (1 - done / s.rounds)
        for _ in range(s.epochs):
            order = self.random.permutation(len(flat["action"]))
            for part in np.array_split(order, s.parts):
                some = {name: v[part] for name, v in flat.items()}
                self.weights, self.adam = ppo_update(
                    self.weights, self.adam, some, rate, s.clip, s.entropy, s.critic
                )
        return found["rewards"].sum(axis=0)

    def advantages_and_goals(self, batch: Mapping[str, np.ndarray]) -> tuple[Floats, Floats]:
        """Return the normalized advantages of the actions, and the goals of the critic."""
        weights = {k: np.asarray(w) for k, w in self.weights.items()}
        steps, count = batch["reward"].shape
        value = dueling_heads(weights, batch["observations"].reshape(steps * count, -1))[0].reshape(
            steps, count
        )
        advantage = generalized_advantages(batch["reward"], value, self.settings.smooth)
        normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return normal, advantage + value


train = Trainer(PpoLearner.of, PpoSettings, every=50)


def generalized_advantages(reward: Floats, value: Floats, smooth: float) -> Floats:
    """Return Σ λ^k δ[t+k] [steps, episodes], with δ[t] = r[t] + V[t+1] - V[t] (Schulman, 2016)."""
    after = np.concatenate([value[1:], np.zeros_like(value[:1])])
    found, later = np.zeros_like(value), np.zeros_like(value[0])
    for t in reversed(range(len(value))):
        found[t] = later = reward[t] + after[t] - value[t] + smooth * later
    return found


@jax.jit
def ppo_update(
    weights: JaxWeights,
    adam: AdamState,
    batch: Mapping[str, Array],
    rate: Array,
    clip: Array,
    bonus: Array,
    critic: Array,
) -> tuple[JaxWeights, AdamState]:
    """Update weights by clipped probability ratios; `bonus` is the weight of entropy."""

    def loss(weights: JaxWeights) -> Array:
        value, logs = network.actor_critic(weights, batch["observations"], batch["legal"])
        ratio = jnp.exp(network.select_actions(logs, batch["action"]) - batch["chance"])
        within = jnp.clip(ratio, 1 - clip, 1 + clip)
        gain = jnp.minimum(ratio * batch["advantage"], within * batch["advantage"]).mean()
        wrong = ((value - batch["goal"]) ** 2).mean()
        return critic * wrong - gain - bonus * network.entropy(logs).mean()

    return adam.step(network.clip_by_norm(jax.grad(loss)(weights), 0.5), weights, rate)
