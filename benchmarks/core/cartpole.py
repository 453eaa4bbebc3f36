"""CartPole in plain jax.numpy: four numbers along `axis`, any other axes are free."""

from __future__ import annotations

import jax
import jax.numpy as jnp

GRAVITY, FORCE, TAU = 9.8, 10.0, 0.02
CART_AND_POLE, POLE, HALF_LENGTH = 1.1, 0.1, 0.5
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * jnp.pi / 180


def reset(u: jax.Array) -> jax.Array:
    """The first observation, from uniform draws of its shape."""
    return 0.1 * u - 0.05


def step(o: jax.Array, a: jax.Array, axis: int = -1) -> tuple[jax.Array, jax.Array]:
    """The next observation, and whether the pole fell or the cart left the track."""
    x, dx, angle, spin = jnp.unstack(o, axis=axis)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = jnp.where(a == 1, FORCE, -FORCE).astype(o.dtype)
    force = (push + POLE * HALF_LENGTH * spin * spin * sin) / CART_AND_POLE
    inertia = HALF_LENGTH * (4.0 / 3.0 - POLE * cos * cos / CART_AND_POLE)
    spin_up = (GRAVITY * sin - cos * force) / inertia
    pull = force - POLE * HALF_LENGTH * spin_up * cos / CART_AND_POLE
    x, angle = x + TAU * dx, angle + TAU * spin
    o = jnp.stack([x, dx + TAU * pull, angle, spin + TAU * spin_up], axis)
    return o, (abs(x) > X_LIMIT) | (abs(angle) > ANGLE_LIMIT)
