"""The network and its gradient, by hand, with features in the last axis or in the first.

Batch first, [rows, features], is how one writes it; batch last, [features, columns], lets the small
products run along the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.core import cartpole
from benchmarks.core.workload import SAMPLE, Arrays
from benchmarks.threefry import uniform

Hidden = tuple[jax.Array, jax.Array, jax.Array]  # both hidden layers and the probabilities


class Layout(NamedTuple):
    """Where features lie in an observation, and the kernels written for it."""

    axis: int
    forward: Callable[[Arrays, jax.Array], Hidden]
    gradient: Callable[[Arrays, jax.Array, jax.Array, jax.Array], Arrays]
    rows: Callable[[jax.Array], jax.Array]  # merges the leading axis of a tile into its batch


def slope(h: jax.Array) -> jax.Array:
    """d tanh(z) / dz at h = tanh(z)."""
    return 1 - h * h


def softmax(y: jax.Array, axis: int) -> jax.Array:
    """Probabilities along the axis of the actions."""
    e = jnp.exp(y - y.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def forward_rows(th: Arrays, x: jax.Array) -> Hidden:
    """x [rows, 4] → h1, h2 [rows, 32], p [rows, 2]."""
    h1 = jnp.tanh(x @ th["W1"] + th["b1"])
    h2 = jnp.tanh(h1 @ th["W2"] + th["b2"])
    return h1, h2, softmax(h2 @ th["W3"] + th["b3"], -1)


def gradient_rows(th: Arrays, o: jax.Array, a: jax.Array, c: jax.Array) -> Arrays:
    """∇θ Σ c log p(a | o) over the rows."""
    h1, h2, p = forward_rows(th, o)
    d3 = c[:, None] * ((a[:, None] == jnp.arange(2)).astype(c.dtype) - p)
    d2 = (d3 @ th["W3"].T) * slope(h2)
    d1 = (d2 @ th["W2"].T) * slope(h1)
    weights = dict(W1=o.T @ d1, W2=h1.T @ d2, W3=h2.T @ d3)
    return weights | dict(b1=d1.sum(0), b2=d2.sum(0), b3=d3.sum(0))


def forward_columns(th: Arrays, x: jax.Array) -> Hidden:
    """x [4, columns] → h1, h2 [32, columns], p [2, columns]."""
    h1 = jnp.tanh(th["W1"].T @ x + th["b1"][:, None])
    h2 = jnp.tanh(th["W2"].T @ h1 + th["b2"][:, None])
    return h1, h2, softmax(th["W3"].T @ h2 + th["b3"][:, None], 0)


def gradient_columns(th: Arrays, o: jax.Array, a: jax.Array, c: jax.Array) -> Arrays:
    """∇θ Σ c log p(a | o) over the columns: every weight contracts two last axes."""
    h1, h2, p = forward_columns(th, o)
    d3 = c * ((a == jnp.arange(2)[:, None]).astype(c.dtype) - p)
    d2 = (th["W3"] @ d3) * slope(h2)
    d1 = (th["W2"] @ d2) * slope(h1)
    weights = dict(W1=o @ d1.T, W2=h1 @ d2.T, W3=h2 @ d3.T)
    return weights | dict(b1=d1.sum(1), b2=d2.sum(1), b3=d3.sum(1))


BATCH_FIRST = Layout(
    -1, forward_rows, gradient_rows, lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
)
BATCH_LAST = Layout(
    0,
    forward_columns,
    gradient_columns,
    lambda x: jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], x.shape[0] * x.shape[-1]),
)


def act(
    layout: Layout, th: Arrays, o: jax.Array, r: jax.Array, seed: jax.Array, i: Any, t: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """o, r at t → the actions, then o, r at t+1: a finished episode stays where it ended."""
    u = uniform(seed, SAMPLE, i, jnp.arange(len(r)), t, r.dtype)
    p = layout.forward(th, o)[2]
    a = (u > lax.index_in_dim(p, 0, layout.axis, keepdims=False)).astype(jnp.int32)
    moved, done = cartpole.step(o, a, layout.axis)
    alive = jnp.where(done, 0.0, r).astype(r.dtype)
    return a, jnp.where(jnp.expand_dims(alive, layout.axis) > 0, moved, o), alive
