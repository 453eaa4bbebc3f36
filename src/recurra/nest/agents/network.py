"""The network of `policy` in JAX, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from recurra.nest.agents.policy import AnyWeights, dueling_heads, q_values
from recurra.nest.agents.vector_env import LOW
from recurra.support.adam import direction, moments

JaxWeights = Mapping[str, Array]
"""Weights of `policy`, as arrays or tracers of JAX"""


def values(weights: JaxWeights, observations: Array) -> Array:
    return q_values(weights, observations, jnp)


def actor_critic(weights: JaxWeights, observations: Array, legal: Array) -> tuple[Array, Array]:
    """Return the values of states [n], and log-probabilities of actions [n, actions]."""
    value, logits = dueling_heads(weights, observations, jnp)
    return value, jax.nn.log_softmax(jnp.where(legal, logits, LOW), axis=1)


def select_actions(array: Array, actions: Array) -> Array:
    """Return [n] of [n, actions]: the entries of the actions taken."""
    return jnp.take_along_axis(array, actions[:, None], axis=1)[:, 0]


def entropy(logs: Array) -> Array:
    """Return the entropies [n] of log-probabilities [n, actions]."""
    return -(jnp.exp(logs) * logs).sum(axis=1)


class AdamState(NamedTuple):
    """The state of Adam, of weights by name."""

    count: Any  # an array; tuples have a method of this name
    mean: AnyWeights
    square: AnyWeights

    @classmethod
    def zero(cls, weights: AnyWeights) -> AdamState:
        zeros = {k: np.zeros_like(w) for k, w in weights.items()}
        return cls(np.zeros((), np.float32), zeros, zeros)

    def step(
        self, gradient: JaxWeights, weights: JaxWeights, rate: Array | float, decay: float = 0.0
    ) -> tuple[JaxWeights, AdamState]:
        """Return the weights and state after a step, with decoupled weight decay (AdamW)."""
        count = self.count + 1
        mean, square, new = dict[str, Array](), dict[str, Array](), dict[str, Array]()
        for k, w in weights.items():
            mean[k], square[k] = moments(jnp, gradient[k], self.mean[k], self.square[k])
            change = direction(jnp, mean[k], square[k], count)
            new[k] = w - rate * (change + decay * w if decay else change)
        return new, AdamState(count, mean, square)


def clip_by_norm(gradient: JaxWeights, most: float) -> dict[str, Array]:
    """Scale a gradient down to the norm `most`, over all weights, if it is larger."""
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in gradient.values()))
    return {name: g * jnp.minimum(1.0, most / (norm + 1e-9)) for name, g in gradient.items()}
