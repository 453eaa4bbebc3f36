"""PPO (Schulman et al., 2017): all actors walk by one policy, which then learns from all of it.

The chance of what was done may grow or shrink by a share only; how good it was is told by the
critic's generalized advantages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from recurra.nest.agents.learning import Distributed, Trainer
from recurra.nest.agents.network import AdamState, JaxWeights, at_actions, chances, clipped, entropy
from recurra.nest.agents.policy import heads
from recurra.nest.agents.sampling_actor import Walker, example, joined
from recurra.nest.agents.vector_env import Floats, World
from recurra.support.workers.supervisor import Where


@dataclass(frozen=True)
class PpoSettings:
    """The settings of PPO: a round is an answer of every actor, learned from `epochs` times."""

    rounds: int = 600
    actors: int = 4
    pool: Where = "turns"
    address: str | None = field(default=None, repr=False)
    """Of the cluster, with the pool ray; by default a Ray of its own on this machine"""
    batch: int = 64
    """Episodes of an answer"""
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    epochs: int = 4
    parts: int = 4
    """Of an epoch, each an update"""
    clip: float = 0.2
    smooth: float = 0.95
    """λ of generalized advantages"""
    entropy: float = 0.01
    critic: float = 0.5
    seed: int = 0


class PpoLearner(Distributed[PpoSettings]):
    """The learner and its actors, who wait for each other."""

    def __init__(self, world: World, settings: PpoSettings) -> None:
        super().__init__(world, settings, Walker)

    def update(self, done: int) -> Floats:
        s = self.settings
        self.actors.begin(self.weights)
        answers = dict(self.actors.answer() for _ in range(s.actors))
        found = joined([answers[who] for who in range(s.actors)])
        self.steps += found["states"].size
        x = example(self.world, found)
        x["advantage"], x["goal"] = self.judged(x)
        flat = {name: v.reshape(-1, *v.shape[2:]) for name, v in x.items()}
        rate = s.learning_rate * (1 - done / s.rounds)
        for _ in range(s.epochs):
            order = self.random.permutation(len(flat["action"]))
            for part in np.array_split(order, s.parts):
                some = {name: v[part] for name, v in flat.items()}
                self.weights, self.adam = improved(
                    self.weights, self.adam, some, rate, s.clip, s.entropy, s.critic
                )
        return found["rewards"].sum(axis=0)

    def judged(self, batch: Mapping[str, np.ndarray]) -> tuple[Floats, Floats]:
        """Advantages of what was done, normalized, and what the critic should have said."""
        weights = {k: np.asarray(w) for k, w in self.weights.items()}
        steps, count = batch["reward"].shape
        value = heads(weights, batch["seen"].reshape(steps * count, -1))[0].reshape(steps, count)
        advantage = generalized(batch["reward"], value, self.settings.smooth)
        normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return normal, advantage + value


train = Trainer(PpoLearner.of, PpoSettings, every=50)


def generalized(reward: Floats, value: Floats, smooth: float) -> Floats:
    """[steps, episodes]: Σ λ^k δ[t+k], with δ[t] = r[t] + V[t+1] - V[t] (Schulman et al., 2016)."""
    after = np.concatenate([value[1:], np.zeros_like(value[:1])])
    found, later = np.zeros_like(value), np.zeros_like(value[0])
    for t in reversed(range(len(value))):
        found[t] = later = reward[t] + after[t] - value[t] + smooth * later
    return found


@jax.jit
def improved(
    weights: JaxWeights,
    adam: AdamState,
    batch: Mapping[str, Array],
    rate: Array,
    clip: Array,
    bonus: Array,
    critic: Array,
) -> tuple[JaxWeights, AdamState]:
    """One update by clipped chances; `bonus` is the worth of entropy."""

    def loss(weights: JaxWeights) -> Array:
        value, logs = chances(weights, batch["seen"], batch["legal"])
        ratio = jnp.exp(at_actions(logs, batch["action"]) - batch["chance"])
        within = jnp.clip(ratio, 1 - clip, 1 + clip)
        gain = jnp.minimum(ratio * batch["advantage"], within * batch["advantage"]).mean()
        wrong = ((value - batch["goal"]) ** 2).mean()
        return critic * wrong - gain - bonus * entropy(logs).mean()

    return adam.step(clipped(jax.grad(loss)(weights), 0.5), weights, rate)
