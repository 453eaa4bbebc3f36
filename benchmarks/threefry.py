"""Counter-based uniform numbers: the key is (seed, op, i), two coordinates are the counter.

Threefry-2x32 with 20 rounds (Salmon et al., SC 2011), as in jax.random, but keyed by hand: a draw
depends on where it stands in the program's index space and on nothing else.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[jax.Array, jax.Array]:
    """Two words of the block cipher, from two words of key and two of counter (uint32)."""
    keys = (k0, k1, k0 ^ k1 ^ jnp.uint32(PARITY))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for q in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << q) | (x1 >> (32 - q))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1


def uniform(
    seed: jax.Array, op: int, i: jax.Array, c0: ArrayLike, c1: ArrayLike, dtype: DTypeLike
) -> jax.Array:
    """Numbers in [0, 1) with 23 random bits, one for each pair of counters (c0, c1)."""
    c0, c1 = jnp.broadcast_arrays(jnp.asarray(c0, jnp.uint32), jnp.asarray(c1, jnp.uint32))
    key = threefry(seed, jnp.uint32(op), i.astype(jnp.uint32), jnp.uint32(0))
    bits, _ = threefry(*key, c0, c1)
    one_to_two = lax.bitcast_convert_type((bits >> 9) | jnp.uint32(0x3F800000), jnp.float32)
    return (one_to_two - 1).astype(dtype)
