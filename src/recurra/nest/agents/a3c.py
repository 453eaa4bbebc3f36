"""A3C (Mnih et al., 2016): actors send gradients of their episodes, applied as they arrive.

The learner does not wait for all actors, so gradients are of slightly older weights. Returns extend
to the end of the episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array, lax

from recurra.nest.agents import network
from recurra.nest.agents.actors import ActorTask, Answer
from recurra.nest.agents.learning import Distributed, Trainer
from recurra.nest.agents.network import AdamState, JaxWeights
from recurra.nest.agents.policy import Weights
from recurra.nest.agents.sampling_actor import (
    ActorCriticSettings,
    SamplingActor,
    flattened,
    training_batch,
)
from recurra.nest.agents.vector_env import Floats, VectorEnv


@dataclass(frozen=True)
class A3cSettings(ActorCriticSettings):
    """The settings of A3C: a round is one actor's gradient."""


class GradientWorker(SamplingActor[A3cSettings]):
    """An actor that answers with the gradient of the episodes that it has just acted."""

    def __init__(self, env: VectorEnv, task: ActorTask[A3cSettings]) -> None:
        super().__init__(env, task)
        self.settings = task.settings

    def work(self, weights: Weights) -> Answer:
        s, found = self.settings, super().work(weights)
        x = training_batch(self.env, found)
        gradient = actor_critic_gradient(weights, flattened(x), s.entropy, s.critic)
        answer = {name: np.asarray(g) for name, g in gradient.items()}
        return {**answer, "rewards": x["reward"].sum(axis=0), "steps": np.array(x["reward"].size)}


class A3c(Distributed[A3cSettings]):
    """The weights that all gradients are applied to."""

    actor = GradientWorker

    def update(self, done: int) -> Floats:
        s = self.settings
        self.actors.begin(self.weights)
        who, found = self.actors.answer()
        gradient = {name: found[name] for name in self.weights}
        rate = s.learning_rate * (1 - done / s.rounds)
        self.weights, self.adam = adam_step(self.adam, gradient, self.weights, rate)
        self.actors.ask(who, self.weights)
        self.steps += int(found["steps"])
        return found["rewards"]


train = Trainer(A3c.of, A3cSettings, every=500)
adam_step = jax.jit(AdamState.step)


@jax.jit
def actor_critic_gradient(
    weights: JaxWeights, batch: Mapping[str, Array], bonus: Array, critic: Array
) -> dict[str, Array]:
    """Return the gradient of actor and critic; `bonus` is the weight of entropy."""

    def loss(weights: JaxWeights) -> Array:
        value, logs = network.actor_critic(weights, batch["observations"], batch["legal"])
        error = batch["rest"] - value
        gain = (lax.stop_gradient(error) * network.select_actions(logs, batch["action"])).mean()
        return critic * (error**2).mean() - gain - bonus * network.entropy(logs).mean()

    return network.clip_by_norm(jax.grad(loss)(weights), 0.5)
