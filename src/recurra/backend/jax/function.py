"""Pure functions written in jax.numpy, as one op of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Type


class Traced:
    """`fn` on arrays: mapped over axes as asked, called under numpy or traced under jax."""

    def __init__(self, fn: Callable[..., Any]):
        self.fn = jax.jit(fn)  # traced once, however many of its results are read

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


def result_tree(fn: Callable[..., Any], xs: Sequence[Type]) -> Any:
    """What `fn` gives for arrays of these types: its tree, with types for arrays."""
    traced = Traced(fn)
    types, tree = traced.result_types(xs)
    return traced.unflatten(tree, types)


class Packing:
    """A tree of arrays as one vector per element type, f32[n] and i32[m]: few things to carry."""

    def __init__(self, example: Any):
        leaves, self.tree = jax.tree.flatten(example)  # a tree of types
        self.leaves: list[Type] = leaves
        dtypes = sorted({x.dtype for x in self.leaves})
        self.places = {d: [k for k, x in enumerate(self.leaves) if x.dtype == d] for d in dtypes}
        self.types = [Type(d, (sum(map(self._size, ks)),)) for d, ks in self.places.items()]

    def pack(self, tree: Any) -> list[Any]:
        leaves = jax.tree.leaves(tree)
        return [
            jax.numpy.concatenate(
                [jax.numpy.ravel(jax.numpy.asarray(leaves[k], NUMPY_NAME[d])) for k in ks]
            )
            for d, ks in self.places.items()
        ]

    def unpack(self, vectors: Sequence[Any]) -> Any:
        out: dict[int, Any] = {}
        for ks, vector in zip(self.places.values(), vectors, strict=True):
            at = 0
            for k in ks:
                n = self._size(k)
                out[k], at = vector[at : at + n].reshape(self.leaves[k].shape), at + n
        return self.tree.unflatten([out[k] for k in range(len(self.leaves))])

    def _size(self, leaf: int | Type) -> int:
        x = self.leaves[leaf] if isinstance(leaf, int) else leaf
        return prod(x.sizes({}))
