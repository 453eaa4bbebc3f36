"""Pure functions written in jax.numpy, as one op of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Type


class Traced:
    """`fn` on arrays: mapped over axes as asked, called under numpy or traced under jax."""

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn

    def __call__(self, xp: Any, vmaps: Sequence[Any], *xs: Any) -> tuple[Any, ...]:
        f = self.fn
        if xp is np:  # else fn would compute with numpy's promotion rules
            xs = tuple(map(jax.numpy.asarray, xs))
        for flags, last, _ in vmaps:
            axis = -1 if last else 0
            f = jax.vmap(f, in_axes=tuple(axis if flag else None for flag in flags), out_axes=axis)
        out = tuple(jax.tree.leaves(f(*xs)))
        return tuple(np.asarray(y) for y in out) if xp is np else out

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
