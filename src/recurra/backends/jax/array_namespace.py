"""The array namespace of operators under JAX: jax.numpy, and loops."""

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

# 16-bit integers, which programs do not have, stand for 16-bit floats.
WORDS: dict[Any, Any] = {ml_dtypes.bfloat16: np.uint16, np.float16: np.int16}
FLOATS = {word: number for number, word in WORDS.items()}


def bit_views(array: Any) -> Any:
    """View 16-bit floats, in an array or a tree of arrays, as integers of the same bits.

    XLA's CPU has no 16-bit floats: it moves them as f32, in a pass over the whole array. So arrays
    that live from launch to launch, or from step to step, are integers there.
    """
    return (
        bit_view(array)
        if isinstance(array, (np.ndarray, jax.Array))
        else jax.tree.map(bit_view, array)
    )


def floats(array: Any) -> Any:
    """View the integers that `bit_views` returned as floats again."""
    is_one = isinstance(array, (np.ndarray, jax.Array))
    return number(array) if is_one else jax.tree.map(number, array)


def bit_view(array: Any) -> Any:
    """Apply `bit_views` to one array."""
    kind = WORDS.get(_kind(array))
    return array if kind is None or devices()[0].platform != "cpu" else _bitcast(kind, array)


def number(array: Any) -> Any:
    """Apply `floats` to one array."""
    kind = FLOATS.get(_kind(array))
    return array if kind is None else _bitcast(kind, array)


def _kind(array: Any) -> Any:
    return array.dtype.type if hasattr(array, "dtype") else type(array)


def _bitcast(kind: Any, array: Any) -> Any:
    if isinstance(array, Tracer):
        return lax.bitcast_convert_type(array, kind)
    return np.asarray(array).view(kind)  # no copy


def through_bit_views(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its arguments and results are passed as `bit_views`."""

    @wraps(function)
    def run(*args: Any) -> Any:
        return bit_views(function(*floats(args)))

    return run


def on_bit_views(function: Callable[..., Any], *xs: Any) -> Any:
    """Apply a function that moves elements, and computes nothing, to their `bit_views`."""
    dtype = jnp.result_type(*xs)
    result = function(*bit_views([jnp.asarray(x, dtype) for x in xs]))
    return result if result.dtype == dtype else floats(result)


def here(array: Any, step: Any) -> Any:
    """Tie an array to a step of a loop, so that XLA hoists nothing that is computed from it."""
    return lax.optimization_barrier((array, step))[0]


def _reduced_in_loop(
    join: Callable[[Any, Any], Any], identity: float, array: Any, axis: int, keepdims: bool
) -> Any:
    """Reduce one axis of an array by a loop of XLA's own."""
    result = lax.reduce(array, np.float32(identity), join, (axis,))
    return jnp.expand_dims(result, axis) if keepdims else result


def _short_axis(array: Any, axes: Any) -> int | None:
    """The reduced axis if it is a single short one, and XLA would call a library; else None.

    XLA's CPU has YNNPACK reduce floats, which takes several times as long as a loop of XLA's own
    for results of few elements each. It recognizes reductions by their operator.
    """
    reduced = axes if isinstance(axes, tuple) else (axes,)
    if len(reduced) != 1 or reduced[0] is None or array.dtype != np.float32:
        return None
    if devices()[0].platform != "cpu":
        return None
    axis = reduced[0] % array.ndim
    most = MAX_LOOP_ROW if axis == array.ndim - 1 else MAX_LOOP_AXIS
    return axis if array.shape[axis] <= most else None


class JaxNamespace:
    """The array namespace `xp` of operators."""

    truncates = True  # XLA casts floats that do not fit an integer as `truncated` does

    # traced once for operands of one type
    threefry = staticmethod(jax.jit(partial(threefry_rounds, jnp)))

    def repeated(self, times: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
        return lax.fori_loop(0, times, body, state)

    def take(self, array: Any, at: Any, axis: int, mode: str = "raise") -> Any:
        """Gather without bounds checks: indices are in range, and none counts from the end."""
        at = jnp.clip(at, 0, array.shape[axis] - 1) if mode == "clip" else jnp.asarray(at)
        key = (*(slice(None),) * axis, at.astype(np.uint32))
        return on_bit_views(lambda bits: bits.at[key].get(mode="promise_in_bounds"), array)

    def take_along_axis(self, array: Any, at: Any, axis: int) -> Any:
        at = at.astype(np.uint32)
        return on_bit_views(
            lambda bits: jnp.take_along_axis(bits, at, axis=axis, mode="promise_in_bounds"), array
        )

    def where(self, condition: Any, array: Any, otherwise: Any) -> Any:
        return on_bit_views(lambda x, y: jnp.where(condition, x, y), array, otherwise)

    def widened(self, labels: str, dtype: str, *xs: Any) -> Any:
        """Contract operands cast to `dtype`, part by part in a loop; the last part may overlap."""
        by = parts(labels, dtype, *xs) if devices()[0].platform == "cpu" else None
        if by is None:
            return self.einsum(labels, *(x.astype(dtype) for x in xs))
        length, size, axis = by.length, by.size, by.axis
        whole = bit_views(xs[by.operand])

        def body(k: Any, result: Any) -> Any:
            start, some = jnp.minimum(k * length, size - length), list(xs)
            some[by.operand] = floats(lax.dynamic_slice_in_dim(here(whole, k), start, length, axis))
            part = self.einsum(labels, *(x.astype(dtype) for x in some))
            return lax.dynamic_update_slice_in_dim(result, part, start, by.out)

        result = jnp.zeros(result_shape(labels, *xs), dtype)
        return lax.fori_loop(0, -(-size // length), body, result)

    def sum(
        self,
        array: Any,
        axis: Any = None,
        dtype: Any = None,
        keepdims: bool = False,
        **options: Any,
    ) -> Any:
        """`numpy.sum`; a - -b, which XLA does not recognize, is a + b to the last bit."""
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
        """Integer powers; `jax.numpy` looks at the last six bits of the exponent only."""
        result = jnp.ones_like(array)
        for k in range(jnp.iinfo(times.dtype).bits):
            result = jnp.where((times >> k) & 1, result * array, result)
            array = array * array
        return result

    def materialize(self, array: Any) -> Any:
        """Have XLA compute the array as it is, fused with nothing that reads it."""
        return lax.optimization_barrier(array)

    def cummax(self, array: Any, axis: int) -> Any:
        return lax.cummax(array, axis)

    def topk(self, array: Any, size: int, axis: int) -> Any:
        """`TopK`; lax would tell -0 from 0, and NaNs by their signs."""
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
