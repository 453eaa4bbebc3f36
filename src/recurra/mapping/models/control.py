"""A PPO update."""

from __future__ import annotations

from typing import TypedDict

import jax
import jax.numpy as jnp
from jax import Array

from recurra.mapping.models.training import DenseLayer, Model, Sizes, adam, shapes


class ActorCriticWeights(TypedDict):
    """The layers of both networks."""

    policy: list[DenseLayer]
    value: list[DenseLayer]


def ppo_step(batch: int = 4096, observed: int = 64, width: int = 256, actions: int = 8) -> Model:
    """One minibatch: clipped policy loss, value loss, entropy, Adam."""

    def network(out: int) -> Sizes:
        return [{"w": s, "b": s[-1:]} for s in ((observed, width), (width, width), (width, out))]

    parameters = shapes({"policy": network(actions), "value": network(1)})

    def applied(layers: list[DenseLayer], array: Array) -> Array:
        for layer in layers[:-1]:
            array = jnp.tanh(array @ layer["w"] + layer["b"])
        return array @ layers[-1]["w"] + layers[-1]["b"]

    def loss(
        weights: ActorCriticWeights,
        seen: Array,
        action: Array,
        advantage: Array,
        before: Array,
        returns: Array,
    ) -> Array:
        logs = jax.nn.log_softmax(applied(weights["policy"], seen))
        chosen = jnp.take_along_axis(logs, action[:, None], axis=1)[:, 0]
        ratio = jnp.exp(chosen - before)
        clipped = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        error = jnp.mean((applied(weights["value"], seen)[:, 0] - returns) ** 2)
        entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
        return -clipped.mean() + 0.5 * error - 0.01 * entropy

    numbers = shapes((batch,))
    data = (shapes((batch, observed)), shapes((batch,), jnp.int32), numbers, numbers, numbers)
    return adam(loss), (parameters, parameters, parameters, shapes(()), *data), (0, 1, 2)
