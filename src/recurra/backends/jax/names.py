"""The namespace that operators see: jax.numpy, and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax


class Names:
    """`xp` for operators."""

    truncates = True  # XLA casts floats that do not fit an integer as `truncated` does

    def repeated(self, times: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
        return lax.fori_loop(0, times, body, state)

    def cummax(self, x: Any, axis: int) -> Any:
        return lax.cummax(x, axis)

    def topk(self, x: Any, size: int, axis: int) -> Any:
        """`TopK`; lax tells -0 from 0, and the NaNs by their signs."""
        x = jnp.where(jnp.isnan(x), jnp.nan, jnp.where(x == 0, 0, x)).astype(jnp.float32)
        return jnp.moveaxis(lax.top_k(jnp.moveaxis(x, axis, -1), size)[1], -1, axis)

    def joined_at(self, join: str, x: Any, i: Any, v: Any, axis: int) -> Any:
        at: list[Any] = list(jnp.indices(i.shape, sparse=True))
        at[axis] = i
        places = x.at[tuple(at)]
        return places.add(v) if join == "add" else places.max(v)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)
