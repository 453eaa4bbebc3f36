"""The namespace that operators see: jax.numpy, and loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.core import Tracer

from recurra.backends.jax.devices import devices
from recurra.codegen.widened_product import parts
from recurra.cost.thresholds import MAX_LOOP_AXIS, MAX_LOOP_ROW
from recurra.ops.contraction import result_shape
from recurra.ops.random import threefry_rounds

# Whole numbers of 16 bits, which programs do not have, stand for floats of 16 bits.
WORDS: dict[Any, Any] = {ml_dtypes.bfloat16: np.uint16, np.float16: np.int16}
FLOATS = {word: number for number, word in WORDS.items()}


def words(array: Any) -> Any:
    """Floats of 16 bits, of an array or a tree of arrays, as whole numbers of the same bits.

    XLA's CPU has no floats of 16 bits: it moves them as f32, and passes over all of the array for
    that. What is held from launch to launch and from step to step is words there.
    """
    return word(array) if isinstance(array, (np.ndarray, jax.Array)) else jax.tree.map(word, array)


def floats(array: Any) -> Any:
    """The numbers that `words` made words of."""
    return (
        number(array) if isinstance(array, (np.ndarray, jax.Array)) else jax.tree.map(number, array)
    )


def word(array: Any) -> Any:
    """One array of `words`."""
    kind = WORDS.get(_kind(array))
    return array if kind is None or devices()[0].platform != "cpu" else _seen_as(kind, array)


def number(array: Any) -> Any:
    """One array of `floats`."""
    kind = FLOATS.get(_kind(array))
    return array if kind is None else _seen_as(kind, array)


def _kind(array: Any) -> Any:
    return array.dtype.type if hasattr(array, "dtype") else type(array)


def _seen_as(kind: Any, array: Any) -> Any:
    if isinstance(array, Tracer):
        return lax.bitcast_convert_type(array, kind)
    return np.asarray(array).view(kind)  # where it lies


def in_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is given words, and gives them."""

    @wraps(function)
    def run(*given: Any) -> Any:
        return words(function(*floats(given)))

    return run


def moved(function: Callable[..., Any], *xs: Any) -> Any:
    """f(*xs), of an f that moves numbers of one type and computes nothing, as words."""
    dtype = jnp.result_type(*xs)
    made = function(*words([jnp.asarray(x, dtype) for x in xs]))
    return made if made.dtype == dtype else floats(made)


def here(array: Any, step: Any) -> Any:
    """The array as it is in a step of a loop: what is made of it is not made before the loop."""
    return lax.optimization_barrier((array, step))[0]


def _reduced_in_loop(
    join: Callable[[Any, Any], Any], identity: float, array: Any, axis: int, keepdims: bool
) -> Any:
    """The array with one axis reduced, by a loop of XLA's own."""
    made = lax.reduce(array, np.float32(identity), join, (axis,))
    return jnp.expand_dims(made, axis) if keepdims else made


def _short_axis(array: Any, axes: Any) -> int | None:
    """The axis of few elements that is reduced, if it is one, and a library would be called.

    XLA's CPU has YNNPACK reduce floats, which takes several times as long as a loop of XLA's own
    for results of few elements each. It finds reductions by what they are written with.
    """
    one = axes if isinstance(axes, tuple) else (axes,)
    if (
        one == (None,)
        or len(one) != 1
        or array.dtype != np.float32
        or devices()[0].platform != "cpu"
    ):
        return None
    axis = one[0] % array.ndim
    most = MAX_LOOP_ROW if axis == array.ndim - 1 else MAX_LOOP_AXIS
    return axis if array.shape[axis] <= most else None


class JaxNamespace:
    """`xp` for operators."""

    truncates = True  # XLA casts floats that do not fit an integer as `truncated` does

    threefry = staticmethod(
        jax.jit(partial(threefry_rounds, jnp))
    )  # traced once for operands of one type

    def repeated(self, times: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
        return lax.fori_loop(0, times, body, state)

    def take(self, array: Any, at: Any, axis: int, mode: str = "raise") -> Any:
        """All places are there: none is counted from the end, and nothing asks whether it is."""
        at = jnp.clip(at, 0, array.shape[axis] - 1) if mode == "clip" else jnp.asarray(at)
        key = (*(slice(None),) * axis, at.astype(np.uint32))
        return moved(lambda bits: bits.at[key].get(mode="promise_in_bounds"), array)

    def take_along_axis(self, array: Any, at: Any, axis: int) -> Any:
        at = at.astype(np.uint32)
        return moved(
            lambda bits: jnp.take_along_axis(bits, at, axis=axis, mode="promise_in_bounds"), array
        )

    def where(self, condition: Any, array: Any, otherwise: Any) -> Any:
        return moved(lambda x, y: jnp.where(condition, x, y), array, otherwise)

    def widened(self, labels: str, dtype: str, *xs: Any) -> Any:
        """Contract in a loop over parts; the last one begins early enough to be whole."""
        by = parts(labels, dtype, *xs) if devices()[0].platform == "cpu" else None
        if by is None:
            return self.einsum(labels, *(x.astype(dtype) for x in xs))
        length, size, axis = by.length, by.size, by.axis
        whole = words(xs[by.operand])

        def body(k: Any, made: Any) -> Any:
            start, some = jnp.minimum(k * length, size - length), list(xs)
            some[by.operand] = floats(lax.dynamic_slice_in_dim(here(whole, k), start, length, axis))
            part = self.einsum(labels, *(x.astype(dtype) for x in some))
            return lax.dynamic_update_slice_in_dim(made, part, start, by.out)

        made = jnp.zeros(result_shape(labels, *xs), dtype)
        return lax.fori_loop(0, -(-size // length), body, made)

    def sum(
        self,
        array: Any,
        axis: Any = None,
        dtype: Any = None,
        keepdims: bool = False,
        **options: Any,
    ) -> Any:
        """`numpy.sum`; a - -b is a + b to the last bit."""
        short = _short_axis(array, axis)
        if short is None or options or dtype not in (None, array.dtype):
            return jnp.sum(array, axis, dtype, keepdims=keepdims, **options)
        return _reduced_in_loop(lambda a, b: a - -b, 0.0, array, short, keepdims)

    def max(self, array: Any, axis: Any = None, keepdims: bool = False, **options: Any) -> Any:
        """`numpy.max`"""
        short = _short_axis(array, axis)
        if short is None or options:
            return jnp.max(array, axis, keepdims=keepdims, **options)
        return _reduced_in_loop(lambda a, b: -lax.min(-a, -b), -np.inf, array, short, keepdims)

    def pow(self, array: Any, times: Any) -> Any:
        """Powers of whole numbers; `jax.numpy` sees the last six bits of the exponent."""
        made = jnp.ones_like(array)
        for k in range(jnp.iinfo(times.dtype).bits):
            made = jnp.where((times >> k) & 1, made * array, made)
            array = array * array
        return made

    def materialize(self, array: Any) -> Any:
        """An array that XLA makes as it is, and fuses with nothing that reads it."""
        return lax.optimization_barrier(array)

    def cummax(self, array: Any, axis: int) -> Any:
        return lax.cummax(array, axis)

    def topk(self, array: Any, size: int, axis: int) -> Any:
        """`TopK`; lax tells -0 from 0, and the NaNs by their signs."""
        array = jnp.where(jnp.isnan(array), jnp.nan, jnp.where(array == 0, 0, array)).astype(
            jnp.float32
        )
        return jnp.moveaxis(lax.top_k(jnp.moveaxis(array, axis, -1), size)[1], -1, axis)

    def joined_at(self, join: str, array: Any, indices: Any, values: Any, axis: int) -> Any:
        at: list[Any] = list(jnp.indices(indices.shape, sparse=True))
        at[axis] = indices
        places = array.at[tuple(at)]
        if join == "set":
            return places.set(values, mode="drop", unique_indices=True)
        how = {"add": places.add, "minimum": places.min, "maximum": places.max}[join]
        return how(values, mode="drop")

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)
