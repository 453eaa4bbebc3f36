"""Loss functions → training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any


def shapes(tree: Tree, dtype: Any = jnp.float32) -> Tree:
    """Tuples of sizes → `jax.ShapeDtypeStruct`s."""

    def leaf(x: Any) -> bool:
        return isinstance(x, tuple) and all(isinstance(n, int) for n in x)

    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, dtype), tree, is_leaf=leaf)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Mean over all but the last axis of -log softmax(logits)[labels]."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -chosen.mean()


def momentum(loss: Callable[..., Any], rate: float = 0.01) -> Callable[..., Any]:
    """(parameters, momenta, data..) → both after one step of SGD with momentum, and the loss."""

    def step(parameters: Tree, momenta: Tree, *data: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(parameters, *data)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradient)
        parameters = jax.tree.map(lambda p, m: p - rate * m, parameters, momenta)
        return parameters, momenta, value

    return step


def adam(loss: Callable[..., Any], rate: float = 1e-3) -> Callable[..., Any]:
    """(parameters, first and second moments, count, data..) → the same after one step of Adam."""

    def step(parameters: Tree, first: Tree, second: Tree, count: Any, *data: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(parameters, *data)
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        size = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)

        def moved(p: Any, m: Any, v: Any) -> Any:
            return p - size * m / (jnp.sqrt(v) + 1e-8)

        parameters = jax.tree.map(moved, parameters, first, second)
        return parameters, first, second, count, value

    return step
