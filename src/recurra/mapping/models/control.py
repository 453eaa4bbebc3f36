"""A PPO update."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from recurra.mapping.models.training import Model, Tree, adam, dense_layers, shapes


def ppo_step(batch: int = 4096, observed: int = 64, width: int = 256, actions: int = 8) -> Model:
    """One minibatch: clipped policy loss, value loss, entropy, Adam."""

    def network(out: int) -> Tree:
        return dense_layers((observed, width), (width, width), (width, out))

    parameters = shapes({"policy": network(actions), "value": network(1)})

    def forward(layers: Tree, array: Array) -> Array:
        for layer in layers[:-1]:
            array = jnp.tanh(array @ layer["w"] + layer["b"])
        return array @ layers[-1]["w"] + layers[-1]["b"]

    def loss(
        weights: Tree,
        observation: Array,
        action: Array,
        advantage: Array,
        old_log_prob: Array,
        returns: Array,
    ) -> Array:
        logs = jax.nn.log_softmax(forward(weights["policy"], observation))
        chosen = jnp.take_along_axis(logs, action[:, None], axis=1)[:, 0]
        ratio = jnp.exp(chosen - old_log_prob)
        clipped = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        error = jnp.mean((forward(weights["value"], observation)[:, 0] - returns) ** 2)
        entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
        return -clipped.mean() + 0.5 * error - 0.01 * entropy

    numbers = shapes((batch,))
    data = (shapes((batch, observed)), shapes((batch,), jnp.int32), numbers, numbers, numbers)
    return adam(loss), (parameters, parameters, parameters, shapes(()), *data), (0, 1, 2)
