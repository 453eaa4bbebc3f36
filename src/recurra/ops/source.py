"""Ops without operands: constants, symbols read as numbers, and random draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from recurra.ir.expr import Expr, evaluate
from recurra.ir.op import Array, Op, Symbolic
from recurra.ir.resource import ArrayResource
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Range, Type


class Const(Symbolic):
    """y = value everywhere"""

    value: float
    dtype: str = "f32"
    shape: tuple[Expr | int, ...] = ()

    def infer(self) -> Type:
        return Type(self.dtype, self.shape)

    def eval_at(self, xp: Any, env: Any) -> Array:
        shape = tuple(evaluate(s, env) for s in self.shape)
        return xp.full(shape, self.value, dtype=NUMPY_NAME[self.dtype])

    def batch_size(self, size: Expr | int, last: bool) -> Self:
        return replace(self, shape=(*self.shape, size) if last else (size, *self.shape))


class Data(Op):
    """y = an array that the program brought along"""

    held = MappingProxyType({"key": ArrayResource})
    key: ArrayResource

    def infer(self) -> Type:
        x = self.key.get()
        return Type(SHORT_NAME[x.dtype.name], tuple(x.shape))

    def eval(self, xp: Any) -> Array:
        return xp.asarray(self.key.get())


class Input(Op):
    """y is given by the caller, at every point of its domain

    Or it is a part of the input `of`: what that is `at` these points, steps along the same dims.
    """

    dtype: str
    shape: tuple[Expr | int, ...] = ()
    of: str = ""
    at_: tuple[Expr | int, ...] = ()

    def given(self, n: Any, env: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
        """Return what the caller gave of the equation `n`, [*dims, *shape]: a view of his array."""
        whole = arrays[self.of or n.name]
        if not self.of:
            return whole
        whole = whole if hasattr(whole, "shape") else np.asarray(whole)
        pairs = zip(self.at_, n.domain, strict=True)
        return whole[tuple(_steps(e, r, env) for e, r in pairs)]

    def infer(self) -> Type:
        return Type(self.dtype, self.shape)


def _steps(expr: Expr | int, extent: Range, env: Mapping[str, Any]) -> slice:
    """The values of an expression at the points of a range: it grows with the dim, in steps."""
    first, second = (
        evaluate(expr, {**env, extent.dim: evaluate(extent.lo, env) + k}) for k in (0, 1)
    )
    return slice(first, first + (second - first) * extent.size(env), second - first)


class Value(Symbolic):
    """y = an expression of dims and bounds, as a number"""

    expr: Expr | int
    dtype: str = "i32"
    bind: tuple[tuple[str, Expr | int, int], ...] = ()

    def infer(self) -> Type:
        return Type(self.dtype, tuple(s for _, s, _ in sorted(self.bind, key=lambda b: b[2])))

    def rank(self) -> int:
        return len(self.bind)

    def eval_at(self, xp: Any, env: Any) -> Array:
        y = xp.asarray(evaluate(self.expr, env, xp), dtype=NUMPY_NAME[self.dtype])
        shape = tuple(evaluate(s, env) for _, s, _ in sorted(self.bind, key=lambda b: b[2]))
        return xp.broadcast_to(y, shape) if shape else y

    def batch_symbol(self, dim: str, size: Expr | int, last: bool) -> Self:
        return replace(self, bind=add_bound(self.bind, dim, size, self.rank(), last))


def add_bound(
    bind: Any, dim: str, size: Any, rank: int, last: bool
) -> tuple[tuple[str, Any, int], ...]:
    if last:
        return (*bind, (dim, size, rank))
    return ((dim, size, 0), *((d, s, a + 1) for d, s, a in bind))


class Uniform(Symbolic):
    """y ~ U[0, 1), the same in every schedule: a pure function of (seed, id, key, counter)

    Element k of a shaped draw is the second counter; what does not fit two counters is in the key.
    """

    drawn = True
    id: int
    key: tuple[Expr | int, ...] = ()
    counter: tuple[Expr | int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = "f32"
    bind: tuple[tuple[str, Expr | int, int], ...] = ()

    def infer(self) -> Type:
        if len(self.counter) + bool(self.shape) > 2:
            raise TypeError(f"uniform: {self.counter} and the elements do not fit two counters")
        shape: list[Any] = list(self.shape)
        for _, size, axis in sorted(self.bind, key=lambda b: b[2]):
            shape.insert(axis, size)
        return Type(self.dtype, tuple(shape))

    def rank(self) -> int:
        return len(self.bind) + len(self.shape)

    def eval_at(self, xp: Any, env: Any) -> Array:
        full = self.infer().sizes(env)
        counts = [evaluate(c, env, xp) for c in self.counter]
        if self.shape:
            bound = {a for *_, a in self.bind}
            own = tuple(n if k not in bound else 1 for k, n in enumerate(full))
            counts.append(xp.reshape(xp.arange(prod(self.shape)), own))
        c0, c1 = (*counts, 0, 0)[:2]
        words = [xp.asarray(evaluate(k, env, xp)) for k in self.key]
        return uniform(xp, env.get("seed", 0), self.id, words, c0, c1, full, self.dtype)

    def batch_symbol(self, dim: str, size: Expr | int, last: bool) -> Self:
        return replace(self, bind=add_bound(self.bind, dim, size, self.rank(), last))


def uniform(
    xp: Any,
    seed: Any,
    id: int,
    key: list[Any],
    c0: Any,
    c1: Any,
    shape: tuple[int, ...],
    dtype: str,
) -> Array:
    """Threefry-2x32 on (c0, c1) under a key folded from (seed, id, key...)."""
    k0, k1 = drawn_words(xp, [seed, id, *(key or [0])])
    at_least_one = shape or (1,)
    c0, c1 = (xp.broadcast_to(_u32(xp, c), at_least_one) for c in (c0, c1))
    bits = threefry(xp, k0, k1, c0, c1)[0]
    whole = xp.asarray(xp.bitwise_right_shift(bits, 9), dtype="int32")  # 23 bits: exact as a float
    unit = xp.asarray(whole, dtype="float32") * xp.asarray(2.0**-23, dtype="float32")
    return xp.asarray(xp.reshape(unit, shape), dtype=NUMPY_NAME[dtype])


def drawn_words(xp: Any, given: list[Any]) -> tuple[Array, Array]:
    """One key of two words, of two or more: pairs of them are the counters of the next key."""
    words = [_u32(xp, w) for w in given]
    k0, k1 = words[0], words[1]
    rest = words[2:] + [_u32(xp, 0)] * (len(words) % 2)
    for a, b in zip(rest[::2], rest[1::2], strict=True):
        k0, k1 = threefry(xp, k0, k1, a, b)
    return k0, k1


def _u32(xp: Any, x: Any) -> Array:
    """As uint32 of rank >= 1: numpy warns when a scalar wraps around."""
    y = xp.asarray(x & 0xFFFFFFFF if isinstance(x, int) else x, dtype="uint32")
    return xp.reshape(y, (1,)) if y.ndim == 0 else y


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(xp: Any, k0: Array, k1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Twenty rounds (Salmon et al., 2011), in fives of four; without numbers, fewer will do."""
    ks = (k0, k1, k0 ^ k1 ^ _u32(xp, 0x1BD11BDA))
    x0, x1 = x0 + ks[0], x1 + ks[1]
    for r in range(getattr(xp, "rounds", 5)):
        for q in _ROTATIONS[r % 2]:
            x0 = x0 + x1
            x1 = ((x1 << q) | xp.bitwise_right_shift(x1, 32 - q)) ^ x0
        x0, x1 = x0 + ks[(r + 1) % 3], x1 + ks[(r + 2) % 3] + _u32(xp, r + 1)
    return x0, x1
