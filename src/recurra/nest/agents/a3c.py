"""A3C (Mnih et al., 2016): actors send gradients of their episodes, applied as they come.

While one actor works, others move the weights: its gradient is a little late, and nobody waits.
Returns go to the end of the episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np
from jax import Array, lax

from recurra.nest.agents.actors import ActorTask, Answer
from recurra.nest.agents.learning import Distributed, Trainer
from recurra.nest.agents.network import AdamState, JaxWeights, at_actions, chances, clipped, entropy
from recurra.nest.agents.policy import Weights
from recurra.nest.agents.sampling_actor import Walker, example
from recurra.nest.agents.vector_env import Floats, World
from recurra.support.workers.supervisor import Where


@dataclass(frozen=True)
class A3cSettings:
    """The settings of A3C: a round is one actor's gradient."""

    rounds: int = 5000
    actors: int = 4
    pool: Where = "processes"
    address: str | None = field(default=None, repr=False)
    """Of the cluster, with the pool ray; by default a Ray of its own on this machine"""
    batch: int = 32
    """Episodes of a gradient"""
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    entropy: float = 0.01
    critic: float = 0.5
    seed: int = 0


class GradientWorker(Walker[A3cSettings]):
    """An actor: the gradient of the episodes that it has just walked."""

    def __init__(self, world: World, task: ActorTask[A3cSettings]) -> None:
        super().__init__(world, task)
        self.settings = task.settings

    def work(self, weights: Weights) -> Answer:
        s, found = self.settings, super().work(weights)
        x = example(self.world, found)
        flat = {name: v.reshape(-1, *v.shape[2:]) for name, v in x.items()}
        gradient = slope(weights, flat, s.entropy, s.critic)
        sent = {name: np.asarray(g) for name, g in gradient.items()}
        return {**sent, "rewards": x["reward"].sum(axis=0), "steps": np.array(x["reward"].size)}


class A3c(Distributed[A3cSettings]):
    """The weights that all gradients are applied to."""

    def __init__(self, world: World, settings: A3cSettings) -> None:
        super().__init__(world, settings, GradientWorker)

    def update(self, done: int) -> Floats:
        s = self.settings
        self.actors.begin(self.weights)
        who, found = self.actors.answer()
        gradient = {name: found[name] for name in self.weights}
        rate = s.learning_rate * (1 - done / s.rounds)
        self.weights, self.adam = applied(self.weights, self.adam, gradient, rate)
        self.actors.ask(who, self.weights)
        self.steps += int(found["steps"])
        return found["rewards"]


train = Trainer(A3c.of, A3cSettings, every=500)


@jax.jit
def slope(
    weights: JaxWeights, batch: Mapping[str, Array], bonus: Array, critic: Array
) -> dict[str, Array]:
    """The gradient of actor and critic; `bonus` is the worth of entropy."""

    def loss(weights: JaxWeights) -> Array:
        value, logs = chances(weights, batch["seen"], batch["legal"])
        error = batch["rest"] - value
        gain = (lax.stop_gradient(error) * at_actions(logs, batch["action"])).mean()
        return critic * (error**2).mean() - gain - bonus * entropy(logs).mean()

    return clipped(jax.grad(loss)(weights), 0.5)


@jax.jit
def applied(
    weights: JaxWeights, adam: AdamState, gradient: JaxWeights, rate: Array
) -> tuple[JaxWeights, AdamState]:
    return adam.step(gradient, weights, rate)
