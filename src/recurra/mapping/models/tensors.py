"""The torso of AlphaTensor: attention between three grids that are three views of a tensor."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from recurra.mapping.models.sequence import attention, normalized
from recurra.mapping.models.training import shapes

VIEWS = ((0, 1, 2, 3, 4), (0, 2, 3, 1, 4), (0, 3, 1, 2, 4))
PAIRS = ((0, 1), (2, 0), (1, 2))


def alphatensor(
    batch: int = 64, side: int = 9, past: int = 4, width: int = 128, layers: int = 4
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
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

    def grids(p: Any, tensor: Any, scalar: Any) -> list[Any]:
        spread = jnp.broadcast_to(scalar[:, None, None, :], (batch, side, side, 1))
        found: list[Any] = []
        for axes, w in zip(VIEWS, p["views"], strict=True):
            grid = jnp.transpose(tensor, axes).reshape(batch, side, side, side * past)
            found.append(jnp.concatenate([grid, spread], axis=-1) @ w)
        return found

    def attentive(q: Any, a: Any, b: Any) -> tuple[Any, Any]:
        """Rows of one grid and columns of another, mixed."""
        x = jnp.concatenate([a, jnp.swapaxes(b, 1, 2)], axis=2).reshape(-1, 2 * side, width)
        y = normalized(x, q["norms"][0])
        x = x + attention(q["attention"], y, y, 8)
        x = x + jax.nn.gelu(normalized(x, q["norms"][1]) @ q["up"]) @ q["down"]
        x = x.reshape(batch, side, 2 * side, width)
        return x[:, :, :side], jnp.swapaxes(x[:, :, side:], 1, 2)

    def logits(p: Any, tensor: Any, scalar: Any) -> Any:
        seen = grids(p, tensor, scalar)
        for layer in p["layers"]:
            for q, (i, j) in zip(layer, PAIRS, strict=True):
                seen[i], seen[j] = attentive(q, seen[i], seen[j])
        return jnp.concatenate([g.reshape(batch, -1) for g in seen], axis=-1) @ p["out"]

    data = (shapes((batch, side, side, side, past)), shapes((batch, 1)))
    return logits, (parameters, *data), ()
