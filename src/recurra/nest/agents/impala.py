"""IMPALA (Espeholt et al., 2018): actors send episodes, and the learner corrects for their age.

An episode was walked by weights that are no longer those of the learner; V-trace weighs each step
by how much likelier it has become since, at most by 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array, lax

from recurra.nest.agents.learning import Distributed, Trainer
from recurra.nest.agents.network import AdamState, JaxWeights, at_actions, chances, clipped, entropy
from recurra.nest.agents.sampling_actor import Walker, example
from recurra.nest.agents.vector_env import Floats, World
from recurra.support.workers.supervisor import Where


@dataclass(frozen=True)
class ImpalaSettings:
    """The settings of IMPALA: a round is one actor's answer."""

    rounds: int = 5000
    actors: int = 4
    pool: Where = "processes"
    address: str | None = field(default=None, repr=False)
    """Of the cluster, with the pool ray; by default a Ray of its own on this machine"""
    batch: int = 32
    """Episodes of an answer"""
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    entropy: float = 0.01
    critic: float = 0.5
    seed: int = 0


class Impala(Distributed[ImpalaSettings]):
    """The learner and its actors."""

    def __init__(self, world: World, settings: ImpalaSettings) -> None:
        super().__init__(world, settings, Walker)

    def update(self, done: int) -> Floats:
        s = self.settings
        self.actors.begin(self.weights)
        who, found = self.actors.answer()
        self.actors.ask(who, self.weights)  # goes on walking while we learn
        x = example(self.world, found)
        rate = s.learning_rate * (1 - done / s.rounds)
        self.weights, self.adam = corrected(self.weights, self.adam, x, rate, s.entropy, s.critic)
        self.steps += found["states"].size
        return found["rewards"].sum(axis=0)


train = Trainer(Impala.of, ImpalaSettings, every=500)


def v_trace(reward: Array, value: Array, ratio: Array) -> tuple[Array, Array]:
    """[steps, episodes] each: goals of the critic, advantages of the actor.

    v[t] = V[t] + ρ[t] (r[t] + V[t+1] - V[t]) + ρ[t] (v[t+1] - V[t+1]), with ρ = min(1, ratio);
    after the last step both are 0.
    """
    rho = jnp.minimum(1.0, ratio)
    nothing = jnp.zeros_like(value[:1])
    after = jnp.concatenate([value[1:], nothing])

    def back(later: Array, carried: tuple[Array, Array]) -> tuple[Array, Array]:
        error, weight = carried
        found = weight * (error + later)
        return found, found

    errors = reward + after - value
    _, corrections = lax.scan(back, nothing[0], (errors, rho), reverse=True)
    goal = value + corrections
    goal_after = jnp.concatenate([goal[1:], nothing])
    return goal, rho * (reward + goal_after - value)


@jax.jit
def corrected(
    weights: JaxWeights,
    adam: AdamState,
    batch: Mapping[str, Array],
    rate: Array,
    bonus: Array,
    critic: Array,
) -> tuple[JaxWeights, AdamState]:
    """One update from episodes; `bonus` is the worth of entropy."""
    steps, count = batch["reward"].shape
    flat = {name: batch[name].reshape(steps * count, *batch[name].shape[2:]) for name in batch}

    def loss(weights: JaxWeights) -> Array:
        value, logs = chances(weights, flat["seen"], flat["legal"])
        log = at_actions(logs, flat["action"])
        ratio = jnp.exp(lax.stop_gradient(log) - flat["chance"]).reshape(steps, count)
        known = lax.stop_gradient(value).reshape(steps, count)
        goal, advantage = v_trace(batch["reward"], known, ratio)
        gain = (advantage.reshape(-1) * log).mean()
        wrong = ((goal.reshape(-1) - value) ** 2).mean()
        return critic * wrong - gain - bonus * entropy(logs).mean()

    return adam.step(clipped(jax.grad(loss)(weights), 0.5), weights, rate)
