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

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)
