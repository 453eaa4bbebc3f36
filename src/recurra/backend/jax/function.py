"""Pure functions written in jax.numpy, as one op of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Type


class Traced:
    """`fn` on arrays: mapped over axes as asked, called under numpy or traced under jax."""

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn
        self.last: tuple[Any, ...] | None = None
        self.jitted = cache(lambda vmaps: jax.jit(self.mapped(vmaps)))

    def __call__(self, xp: Any, vmaps: tuple[Any, ...], *xs: Any) -> tuple[Any, ...]:
        """Every result. Each is an equation of its own: while it is traced, one call serves all."""
        if xp is np:  # else fn would compute with numpy's promotion rules
            out = self.jitted(vmaps)(*map(jax.numpy.asarray, xs))
            return tuple(np.asarray(y) for y in out)
        if self.last is None or not self.same(vmaps, xs):
            self.last = vmaps, xs, self.mapped(vmaps)(*xs)
        return self.last[-1]

    def same(self, vmaps: Any, xs: Sequence[Any]) -> bool:
        """Are these the operands of the last call? Only tracers never change what they hold."""
        assert self.last is not None
        tracers = all(isinstance(x, Tracer) for x in xs)
        return tracers and self.last[0] == vmaps and [*map(id, self.last[1])] == [*map(id, xs)]

    def mapped(self, vmaps: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
        f = self.fn
        for flags, last, _ in vmaps:
            axis = -1 if last else 0
            f = jax.vmap(f, in_axes=tuple(axis if flag else None for flag in flags), out_axes=axis)
        return lambda *xs: tuple(jax.tree.leaves(f(*xs)))

    def pulled(self, out: int) -> Traced:
        """(*operands, cotangent of result `out`) → cotangents of the operands; integers' are 0."""

        def back(*given: Any) -> tuple[Any, ...]:
            *xs, g = given
            floats = [k for k, x in enumerate(xs) if jax.numpy.issubdtype(x.dtype, np.floating)]

            def result(*ys: Any) -> Any:
                whole = dict(zip(floats, ys, strict=True))
                args = (whole.get(k, x) for k, x in enumerate(xs))
                return jax.tree.leaves(self.fn(*args))[out]

            found = jax.vjp(result, *(xs[k] for k in floats))[1](g)
            by = dict(zip(floats, found, strict=True))
            return tuple(by.get(k, jax.numpy.zeros_like(x)) for k, x in enumerate(xs))

        return Traced(back)

    def on_tensors(self, vmaps: Sequence[Any]) -> Callable[..., tuple[jax.Array, ...]]:
        """The function, compiled, on arrays of any library (DLPack: nothing is copied)."""
        compiled = jax.jit(lambda *xs: self(jax.numpy, vmaps, *xs))
        return lambda *xs: compiled(*(jax.dlpack.from_dlpack(x.contiguous()) for x in xs))

    def result_types(self, xs: Sequence[Type]) -> tuple[tuple[Type, ...], Any]:
        """Types of the flattened results, and the tree they came in."""
        avals = [jax.ShapeDtypeStruct(x.shape, NUMPY_NAME[x.dtype]) for x in xs]
        out = jax.eval_shape(self.fn, *avals)
        leaves, tree = jax.tree.flatten(out)
        return tuple(Type(SHORT_NAME[y.dtype.name], tuple(y.shape)) for y in leaves), tree

    def unflatten(self, tree: Any, leaves: Sequence[Any]) -> Any:
        """Results in the tree that the function gave them in."""
        return jax.tree.unflatten(tree, leaves)
