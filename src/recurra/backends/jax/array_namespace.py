"""The namespace that operators see: jax.numpy, and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from recurra.backends.jax.devices import devices
from recurra.codegen.widened_product import parts
from recurra.ops.contraction import result_shape


def moved(function: Callable[[Any], Any], x: Any) -> Any:
    """f(x), of an f that moves numbers and computes nothing, by their bits.

    XLA's CPU has no floats of 16 bits: it would move them as f32, and copy all of x for that.
    """
    if x.dtype not in (jnp.bfloat16, jnp.float16) or devices()[0].platform != "cpu":
        return function(x)
    bits = lax.bitcast_convert_type(x, jnp.uint16)
    return lax.bitcast_convert_type(function(bits), x.dtype)


def here(x: Any, step: Any) -> Any:
    """x as it is in a step of a loop: what is made of it is not made before the loop."""
    return lax.optimization_barrier((x, step))[0]


class JaxNamespace:
    """`xp` for operators."""

    truncates = True  # XLA casts floats that do not fit an integer as `truncated` does

    def repeated(self, times: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
        return lax.fori_loop(0, times, body, state)

    def take(self, x: Any, at: Any, **options: Any) -> Any:
        return moved(lambda bits: jnp.take(bits, at, **options), x)

    def widened(self, labels: str, dtype: str, *xs: Any) -> Any:
        """In a loop over parts; the last one begins early enough to be whole."""
        by = parts(labels, dtype, *xs) if devices()[0].platform == "cpu" else None
        if by is None:
            return self.einsum(labels, *(x.astype(dtype) for x in xs))
        length, size, axis = by.length, by.size, by.axis

        def body(k: Any, made: Any) -> Any:
            start, some = jnp.minimum(k * length, size - length), list(xs)
            some[by.operand] = moved(
                lambda bits: lax.dynamic_slice_in_dim(bits, start, length, axis),
                here(xs[by.operand], k),
            )
            part = self.einsum(labels, *(x.astype(dtype) for x in some))
            return lax.dynamic_update_slice_in_dim(made, part, start, by.out)

        made = jnp.zeros(result_shape(labels, *xs), dtype)
        return lax.fori_loop(0, -(-size // length), body, made)

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
