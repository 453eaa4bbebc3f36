"""Models of reinforcement learning: a PPO update, and the torso of AlphaTensor.

The torso has attention between three grids that are three views of a tensor.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from recurra.mapping.models.sequence import attention_layer, normalized, transformer_block
from recurra.mapping.models.training import Model, Tree, adam, dense_layers, shapes

VIEWS = ((0, 1, 2, 3, 4), (0, 2, 3, 1, 4), (0, 3, 1, 2, 4))
PAIRS = ((0, 1), (2, 0), (1, 2))


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
    return adam(loss, parameters, *data)


def alphatensor(
    batch: int = 64, side: int = 9, past: int = 4, width: int = 128, layers: int = 4
) -> Model:
    """Policy logits of tensors [B, S, S, S, past], after attentive modes (Fawzi et al. 2022)."""
    parameters = shapes(
        {
            "views": [(side * past + 1, width)] * 3,
            "layers": [[transformer_block(width)] * 3] * layers,
            "out": (3 * side * side * width, 512),
        }
    )

    def grids(weights: Tree, tensor: Array, scalar: Array) -> list[Array]:
        spread = jnp.broadcast_to(scalar[:, None, None, :], (batch, side, side, 1))
        views: list[Array] = []
        for axes, w in zip(VIEWS, weights["views"], strict=True):
            grid = jnp.transpose(tensor, axes).reshape(batch, side, side, side * past)
            views.append(jnp.concatenate([grid, spread], axis=-1) @ w)
        return views

    def attentive(mode: Tree, one: Array, other: Array) -> tuple[Array, Array]:
        """Attend among the rows of one grid and the columns of another."""
        x = jnp.concatenate([one, jnp.swapaxes(other, 1, 2)], axis=2).reshape(-1, 2 * side, width)
        y = normalized(x, mode["norms"][0])
        x = x + attention_layer(mode["attention"][0], y, y, 8)
        x = x + jax.nn.gelu(normalized(x, mode["norms"][1]) @ mode["up"]) @ mode["down"]
        x = x.reshape(batch, side, 2 * side, width)
        return x[:, :, :side], jnp.swapaxes(x[:, :, side:], 1, 2)

    def logits(weights: Tree, tensor: Array, scalar: Array) -> Array:
        views = grids(weights, tensor, scalar)
        for layer in weights["layers"]:
            for mode, (i, j) in zip(layer, PAIRS, strict=True):
                views[i], views[j] = attentive(mode, views[i], views[j])
        return jnp.concatenate([g.reshape(batch, -1) for g in views], axis=-1) @ weights["out"]

    data = (shapes((batch, side, side, side, past)), shapes((batch, 1)))
    return logits, (parameters, *data), ()
