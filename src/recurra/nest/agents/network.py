"""The network of `policy`, as JAX differentiates it, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from recurra.nest.agents.policy import AnyWeights, heads
from recurra.nest.agents.vector_env import LOW
from recurra.support.adam import direction, moments

JaxWeights = Mapping[str, Array]
"""Weights of `policy`, as JAX has them, or traces them"""


def values(weights: JaxWeights, seen: Array) -> Array:
    """[n, actions]: of the dueling network (Wang et al., 2016)."""
    value, advantages = heads(weights, seen, jnp)
    return value[:, None] + advantages - advantages.mean(axis=1, keepdims=True)


def chances(weights: JaxWeights, seen: Array, legal: Array) -> tuple[Array, Array]:
    """Values of states [n], and logarithms of the chances of actions [n, actions]."""
    value, logits = heads(weights, seen, jnp)
    return value, jax.nn.log_softmax(jnp.where(legal, logits, LOW), axis=1)


def at_actions(array: Array, actions: Array) -> Array:
    """[n]: of [n, actions], those of the actions taken."""
    return jnp.take_along_axis(array, actions[:, None], axis=1)[:, 0]


def entropy(logs: Array) -> Array:
    """[n]: of chances whose logarithms these are [n, actions]."""
    return -(jnp.exp(logs) * logs).sum(axis=1)


class AdamState(NamedTuple):
    """The state of Adam, of weights by name."""

    count: Any  # an array; the name is one of tuples, too
    mean: AnyWeights
    square: AnyWeights

    @classmethod
    def zero(cls, weights: AnyWeights) -> AdamState:
        nothing = {k: np.zeros_like(w) for k, w in weights.items()}
        return cls(np.zeros((), np.float32), nothing, nothing)

    def step(
        self, gradient: JaxWeights, weights: JaxWeights, rate: Array | float, decay: float = 0.0
    ) -> tuple[JaxWeights, AdamState]:
        """Weights after a step, with a decay of them that is not scaled (AdamW)."""
        count = self.count + 1
        mean, square, new = dict[str, Array](), dict[str, Array](), dict[str, Array]()
        for k, w in weights.items():
            mean[k], square[k] = moments(jnp, gradient[k], self.mean[k], self.square[k])
            change = direction(jnp, mean[k], square[k], count)
            new[k] = w - rate * (change + decay * w if decay else change)
        return new, AdamState(count, mean, square)


def clipped(gradient: JaxWeights, most: float) -> dict[str, Array]:
    """Made shorter where its length, over all weights, exceeds `most`."""
    length = jnp.sqrt(sum(jnp.vdot(g, g) for g in gradient.values()))
    return {name: g * jnp.minimum(1.0, most / (length + 1e-9)) for name, g in gradient.items()}
