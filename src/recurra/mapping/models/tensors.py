"""The torso of AlphaTensor: attention between three grids that are three views of a tensor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from recurra.mapping.models.sequence import attention, normalized, transformer_block
from recurra.mapping.models.training import Model, Tree, shapes

VIEWS = ((0, 1, 2, 3, 4), (0, 2, 3, 1, 4), (0, 3, 1, 2, 4))
PAIRS = ((0, 1), (2, 0), (1, 2))


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
        x = x + attention(mode["attention"][0], y, y, 8)
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
