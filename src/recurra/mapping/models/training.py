"""Loss functions → training steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict, TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

Parameters = TypeVar("Parameters")
Data = TypeVarTuple("Data")

Model = tuple[Callable[..., object], tuple[object, ...], tuple[int, ...]]
"""A function, the shapes of its arguments, and those of them that are donated"""

Sizes = Sequence["Sizes"] | Mapping[str, "Sizes"] | tuple[int, ...]
Shapes = Sequence["Shapes"] | Mapping[str, "Shapes"] | jax.ShapeDtypeStruct


class DenseLayer(TypedDict):
    """Weights [I, O] and a bias [O]."""

    w: Array
    b: Array


def shapes(tree: Sizes, dtype: DTypeLike = jnp.float32) -> Shapes:
    """Tuples of sizes → `jax.ShapeDtypeStruct`s."""

    def is_size(node: Sizes) -> bool:
        return isinstance(node, tuple) and all(isinstance(size, int) for size in node)

    return jax.tree.map(lambda size: jax.ShapeDtypeStruct(size, dtype), tree, is_leaf=is_size)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Mean over all but the last axis of -log softmax(logits)[labels]."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -chosen.mean()


def momentum(
    loss: Callable[[Parameters, *Data], Array], rate: float = 0.01
) -> Callable[[Parameters, Parameters, *Data], tuple[Parameters, Parameters, Array]]:
    """(parameters, momenta, data..) → both after one step of SGD with momentum, and the loss."""

    def step(
        parameters: Parameters, momenta: Parameters, *data: *Data
    ) -> tuple[Parameters, Parameters, Array]:
        value, gradient = jax.value_and_grad(loss)(parameters, *data)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradient)
        parameters = jax.tree.map(lambda p, m: p - rate * m, parameters, momenta)
        return parameters, momenta, value

    return step


def adam(
    loss: Callable[[Parameters, *Data], Array], rate: float = 1e-3
) -> Callable[
    [Parameters, Parameters, Parameters, Array, *Data],
    tuple[Parameters, Parameters, Parameters, Array, Array],
]:
    """(parameters, first and second moments, count, data..) → the same after one step of Adam."""

    def step(
        parameters: Parameters, first: Parameters, second: Parameters, count: Array, *data: *Data
    ) -> tuple[Parameters, Parameters, Parameters, Array, Array]:
        value, gradient = jax.value_and_grad(loss)(parameters, *data)
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        size = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)

        def moved(parameter: Array, mean: Array, square: Array) -> Array:
            return parameter - size * mean / (jnp.sqrt(square) + 1e-8)

        parameters = jax.tree.map(moved, parameters, first, second)
        return parameters, first, second, count, value

    return step
