"""The torso of AlphaTensor: attention between three grids that are three views of a tensor."""

from __future__ import annotations

from typing import TypedDict

import jax
import jax.numpy as jnp
from jax import Array

from recurra.mapping.models.sequence import (
    AttentionWeights,
    TransformerBlock,
    attention,
    normalized,
)
from recurra.mapping.models.training import Model, shapes

VIEWS = ((0, 1, 2, 3, 4), (0, 2, 3, 1, 4), (0, 3, 1, 2, 4))
PAIRS = ((0, 1), (2, 0), (1, 2))
Mode = TransformerBlock[AttentionWeights]


class AlphaTensor(TypedDict):
    """Weights of the views, three modes a layer, the last layer."""

    views: list[Array]
    layers: list[list[Mode]]
    out: Array


def alphatensor(
    batch: int = 64, side: int = 9, past: int = 4, width: int = 128, layers: int = 4
) -> Model:
    """Policy logits of tensors [B, S, S, S, past], after attentive modes (Fawzi et al. 2022)."""
    mode = {
        "attention": {k: (width, width) for k in "qkvo"},
        "norms": [(width,)] * 2,
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    parameters = shapes(
        {
            "views": [(side * past + 1, width)] * 3,
            "layers": [[mode] * 3] * layers,
            "out": (3 * side * side * width, 512),
        }
    )

    def grids(weights: AlphaTensor, tensor: Array, scalar: Array) -> list[Array]:
        spread = jnp.broadcast_to(scalar[:, None, None, :], (batch, side, side, 1))
        found: list[Array] = []
        for axes, w in zip(VIEWS, weights["views"], strict=True):
            grid = jnp.transpose(tensor, axes).reshape(batch, side, side, side * past)
            found.append(jnp.concatenate([grid, spread], axis=-1) @ w)
        return found

    def attentive(mode: Mode, one: Array, other: Array) -> tuple[Array, Array]:
        """Rows of one grid and columns of another, mixed."""
        x = jnp.concatenate([one, jnp.swapaxes(other, 1, 2)], axis=2).reshape(-1, 2 * side, width)
        y = normalized(x, mode["norms"][0])
        x = x + attention(mode["attention"], y, y, 8)
        x = x + jax.nn.gelu(normalized(x, mode["norms"][1]) @ mode["up"]) @ mode["down"]
        x = x.reshape(batch, side, 2 * side, width)
        return x[:, :, :side], jnp.swapaxes(x[:, :, side:], 1, 2)

    def logits(weights: AlphaTensor, tensor: Array, scalar: Array) -> Array:
        seen = grids(weights, tensor, scalar)
        for layer in weights["layers"]:
            for mode, (i, j) in zip(layer, PAIRS, strict=True):
                seen[i], seen[j] = attentive(mode, seen[i], seen[j])
        return jnp.concatenate([g.reshape(batch, -1) for g in seen], axis=-1) @ weights["out"]

    data = (shapes((batch, side, side, side, past)), shapes((batch, 1)))
    return logits, (parameters, *data), ()
