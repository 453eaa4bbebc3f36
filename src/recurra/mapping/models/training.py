"""Loss functions → training steps: SGD with momentum, and Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

Model = tuple[Callable[..., object], tuple[object, ...], tuple[int, ...]]
"""A function, the shapes of its arguments, and those of them that are donated"""

Tree = Any
"""A pytree: nested lists and dicts of arrays, of shapes, or of tuples of sizes"""


def shapes(tree: Tree, dtype: DTypeLike = jnp.float32) -> Tree:
    """Return a tree of tuples of sizes as a tree of `jax.ShapeDtypeStruct`s."""

    def is_size(node: Tree) -> bool:
        return isinstance(node, tuple) and all(isinstance(size, int) for size in node)

    return jax.tree.map(lambda size: jax.ShapeDtypeStruct(size, dtype), tree, is_leaf=is_size)


def dense_layers(*sizes: tuple[int, ...]) -> Tree:
    """Return the sizes of layers: of each the weights, and a bias of the last axis."""
    return [{"w": size, "b": size[-1:]} for size in sizes]


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the mean of -log softmax(logits)[labels], over all axes but the last of logits."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -chosen.mean()


def momentum(loss: Callable[..., Array], weights: Tree, *inputs: Tree) -> Model:
    """Return a step of SGD with momentum.

    (parameters, momenta, inputs..) → both after the step, and the loss; `weights` and `inputs` are
    shapes.
    """

    def step(parameters: Tree, momenta: Tree, *data: Array) -> tuple[Tree, Tree, Array]:
        value, gradient = jax.value_and_grad(loss)(parameters, *data)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradient)
        parameters = jax.tree.map(lambda p, m: p - 0.01 * m, parameters, momenta)
        return parameters, momenta, value

    return step, (weights, weights, *inputs), (0, 1)


def adam(loss: Callable[..., Array], weights: Tree, *inputs: Tree) -> Model:
    """Return a step of Adam.

    (parameters, first and second moments, count, inputs..) → the same without the inputs after the
    step, and the loss; `weights` and `inputs` are shapes.
    """

    def step(
        parameters: Tree, first: Tree, second: Tree, count: Array, *data: Array
    ) -> tuple[Tree, Tree, Tree, Array, Array]:
        value, gradient = jax.value_and_grad(loss)(parameters, *data)
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        size = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)

        def updated(parameter: Array, mean: Array, square: Array) -> Array:
            return parameter - size * mean / (jnp.sqrt(square) + 1e-8)

        parameters = jax.tree.map(updated, parameters, first, second)
        return parameters, first, second, count, value

    return step, (weights, weights, weights, shapes(()), *inputs), (0, 1, 2)
