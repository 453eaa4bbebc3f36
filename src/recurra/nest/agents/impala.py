"""IMPALA (Espeholt et al., 2018): actors send episodes, and the learner corrects for their age.

The weights of an episode are older than the learner's; V-trace weighs each step by the ratio of its
probabilities under both, at most by 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from recurra.nest.agents import network
from recurra.nest.agents.learning import Distributed, Trainer
from recurra.nest.agents.network import AdamState, JaxWeights
from recurra.nest.agents.sampling_actor import (
    ActorCriticSettings,
    SamplingActor,
    flattened,
    training_batch,
)
from recurra.nest.agents.vector_env import Floats


@dataclass(frozen=True)
class ImpalaSettings(ActorCriticSettings):
    """The settings of IMPALA: a round is one actor's answer."""


class Impala(Distributed[ImpalaSettings]):
    """The learner and its actors."""

    actor = SamplingActor

    def update(self, done: int) -> Floats:
        s = self.settings
        self.actors.begin(self.weights)
        who, found = self.actors.answer()
        self.actors.ask(who, self.weights)  # it acts while we learn
        x = training_batch(self.env, found)
        rate = s.learning_rate * (1 - done / s.rounds)
        self.weights, self.adam = v_trace_update(
            self.weights, self.adam, x, rate, s.entropy, s.critic
        )
        self.steps += found["states"].size
        return found["rewards"].sum(axis=0)


train = Trainer(Impala.of, ImpalaSettings, every=500)


def v_trace(reward: Array, value: Array, ratio: Array) -> tuple[Array, Array]:
    """Return the goals of the critic and the advantages of the actor, [steps, episodes] each.

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
def v_trace_update(
    weights: JaxWeights,
    adam: AdamState,
    batch: Mapping[str, Array],
    rate: Array,
    bonus: Array,
    critic: Array,
) -> tuple[JaxWeights, AdamState]:
    """Update weights from episodes; `bonus` is the weight of entropy."""
    steps, count = batch["reward"].shape
    flat = flattened(batch)

    def loss(weights: JaxWeights) -> Array:
        value, logs = network.actor_critic(weights, flat["observations"], flat["legal"])
        log = network.select_actions(logs, flat["action"])
        ratio = jnp.exp(lax.stop_gradient(log) - flat["chance"]).reshape(steps, count)
        known = lax.stop_gradient(value).reshape(steps, count)
        goal, advantage = v_trace(batch["reward"], known, ratio)
        gain = (advantage.reshape(-1) * log).mean()
        wrong = ((goal.reshape(-1) - value) ** 2).mean()
        return critic * wrong - gain - bonus * network.entropy(logs).mean()

    return adam.step(network.clip_by_norm(jax.grad(loss)(weights), 0.5), weights, rate)
