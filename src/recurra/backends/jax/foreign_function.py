"""Pure functions written in jax.numpy, as one op of a program."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from math import prod
from typing import Any, NoReturn, cast

import jax
import numpy as np

from recurra.backends.jax.symbolic_sizes import Sizes
from recurra.errors import RecurraError
from recurra.ir.expr import Expr
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Type, is_wide


def refused(name: str, what: str, facts: str) -> NoReturn:
    """Raise RecurraError: the function uses a primitive that has no equations."""
    raise RecurraError.at_user_line(
        f"{name} uses {what}, which cannot be imported",
        facts=facts,
        hint=f"rc.jax_fn({name}) takes the function as it is, as one operation",
    )


def number(divisor: Expr | int, name: str, kind: str) -> int:
    """Return a size that must be a number. Raise RecurraError if it is only known at compile."""
    if isinstance(divisor, int):
        return divisor
    refused(
        name,
        f"{kind} along an axis of size {divisor}",
        f"{divisor} comes when the program is compiled",
    )


def untraceable(name: str, error: Exception, types: Sequence[Type], taker: str) -> RecurraError:
    """The error for a function that JAX cannot trace; `taker` is the function it was passed to."""
    given = f"it was given {', '.join(map(str, types))}"
    hint = f"{taker} takes a pure function of jax arrays; for others use rc.call"
    late = [n for x in types for n in x.shape if not isinstance(n, int)]
    if late:
        given += f", and {late[0]} is a number only when the program is compiled"
        hint = (
            "let it not ask for that number, or read a range of as many points as you say: x[0:8]"
        )
    return RecurraError.at_user_line(
        f"{name} cannot be traced: {type(error).__name__}: {str(error).splitlines()[0]}",
        facts=given,
        hint=hint,
    )


class Traced:
    """A jax function on arrays: mapped over axes, called under NumPy or traced under JAX."""

    def __init__(self, fn: Callable[..., Any], x64: bool | None = None):
        self.fn = jax.jit(fn)  # traced once, however many of its results are read
        self.compiled = cache(lambda vmaps: jax.jit(self.vmap(vmaps)))
        # JAX's setting when the function was written: the types of its results depend on it
        self.x64: bool = jax.config.jax_enable_x64 if x64 is None else x64  # pyright: ignore

    def x64_context(self, xs: Sequence[Any]) -> AbstractContextManager[object]:
        """The context with JAX's 64-bit types on, if the function or its operands need them."""
        return jax.enable_x64(self.x64 or any(is_wide(x.dtype) for x in xs))

    def __call__(self, xp: Any, vmaps: tuple[Any, ...], *xs: Any) -> tuple[Any, ...]:
        if xp is not np:
            return self.vmap(vmaps)(*xs)
        # numpy's promotion rules are not those that fn is written for
        with self.x64_context(xs):
            return tuple(map(np.asarray, self.compiled(vmaps)(*map(jax.numpy.asarray, xs))))

    def vmap(self, vmaps: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
        f = self.fn
        for flags, last, _ in vmaps:
            axis = -1 if last else 0
            f = jax.vmap(f, in_axes=tuple(axis if flag else None for flag in flags), out_axes=axis)

        def call(*xs: Any) -> tuple[Any, ...]:
            with self.x64_context(xs):
                return tuple(jax.tree.leaves(f(*xs)))

        return call

    def vjp(self, out: int) -> Traced:
        """(*operands, cotangent of result `out`) → cotangents of the operands; integers' are 0."""

        def gradient(*operands: Any) -> tuple[Any, ...]:
            *xs, g = operands
            floats = [k for k, x in enumerate(xs) if jax.numpy.issubdtype(x.dtype, np.floating)]

            def result(*ys: Any) -> Any:
                whole = dict(zip(floats, ys, strict=True))
                args = (whole.get(k, x) for k, x in enumerate(xs))
                return jax.tree.leaves(self.fn(*args))[out]

            found = jax.vjp(result, *(xs[k] for k in floats))[1](g)
            by = dict(zip(floats, found, strict=True))
            return tuple(by.get(k, jax.numpy.zeros_like(x)) for k, x in enumerate(xs))

        return Traced(gradient, self.x64)

    def text(self, xs: Sequence[Type]) -> str:
        """All that the function computes on arrays of these types: equal texts, equal functions."""
        avals = Sizes(xs).avals(xs)
        with self.x64_context(avals):
            closed = jax.make_jaxpr(self.fn)(*avals)
        digest = hashlib.sha256()
        for array in _arrays(closed):
            digest.update(np.asarray(array).tobytes())
        return f"{closed} {digest.hexdigest()}"

    def on_tensors(self, vmaps: tuple[Any, ...]) -> Callable[..., tuple[jax.Array, ...]]:
        """The function, compiled, on arrays of any library (DLPack: nothing is copied)."""
        compiled = self.compiled(vmaps)

        def call(*xs: Any) -> tuple[jax.Array, ...]:
            with jax.enable_x64(True):  # arrays keep their 64-bit types
                arrays = [jax.dlpack.from_dlpack(x.contiguous()) for x in xs]
            with self.x64_context(arrays):
                return compiled(*arrays)

        return call

    def shapes(
        self, vmaps: tuple[Any, ...], xs: Sequence[tuple[tuple[int, ...], str]]
    ) -> list[Any]:
        """The shapes and dtypes of the results of `on_tensors` for operands of these."""
        avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in xs]
        with self.x64_context(avals):
            return jax.tree.leaves(jax.eval_shape(self.compiled(vmaps), *avals))

    def result_types(self, xs: Sequence[Type]) -> tuple[tuple[Type, ...], Any]:
        """Types of the flattened results, and the tree they came in."""
        sizes = Sizes(xs)
        avals = sizes.avals(xs)
        with self.x64_context(avals):
            out = jax.eval_shape(self.fn, *avals)
        leaves, tree = jax.tree.flatten(out)
        types = [Type(SHORT_NAME[y.dtype.name], sizes.from_jax(tuple(y.shape))) for y in leaves]
        return tuple(types), tree

    def unflatten(self, tree: Any, leaves: Sequence[Any]) -> Any:
        """Arrange flat results in the tree that the function returned."""
        return jax.tree.unflatten(tree, leaves)


def _arrays(jaxpr: Any) -> Iterator[Any]:
    """The constants of a jaxpr and of the jaxprs inside."""
    if isinstance(jaxpr, (list, tuple)):
        for part in cast(Sequence[Any], jaxpr):
            yield from _arrays(part)
    elif hasattr(jaxpr, "eqns"):
        yield from getattr(jaxpr, "consts", ())
        for e in jaxpr.eqns:
            yield from (v.val for v in e.invars if hasattr(v, "val"))
            yield from _arrays(tuple(e.params.values()))


def result_tree(fn: Callable[..., Any], xs: Sequence[Type]) -> Any:
    """The tree that `fn` returns for arrays of these types, with types in place of arrays."""
    traced = Traced(fn)
    types, tree = traced.result_types(xs)
    return traced.unflatten(tree, types)


class Packing:
    """A tree of arrays as one vector per element type, f32[n] and i32[m]: few things to carry."""

    def __init__(self, example: Any):
        leaves, self.tree = jax.tree.flatten(example)  # a tree of types
        self.leaves: list[Type] = leaves
        self.sizes = [prod(x.sizes({})) for x in self.leaves]
        dtypes = sorted({x.dtype for x in self.leaves})
        self.places = {d: [k for k, x in enumerate(self.leaves) if x.dtype == d] for d in dtypes}
        self.types = [Type(d, (sum(self.sizes[k] for k in ks),)) for d, ks in self.places.items()]

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
                n = self.sizes[k]
                out[k], at = vector[at : at + n].reshape(self.leaves[k].shape), at + n
        return self.tree.unflatten([out[k] for k in range(len(self.leaves))])
