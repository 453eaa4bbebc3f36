"""Ops without operands: constants, inputs, and symbols read as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import Array, Op, Symbolic
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Range, Type
from recurra.ir.user_objects import ArrayResource


class Const(Symbolic):
    """y = value everywhere"""

    value: float
    dtype: str = "f32"
    shape: tuple[Expr | int, ...] = ()

    def infer(self) -> Type:
        return Type(self.dtype, self.shape)

    def eval_at(self, xp: ArrayNamespace, env: Env) -> Array:
        shape = tuple(evaluate(s, env) for s in self.shape)
        return xp.full(shape, self.value, dtype=NUMPY_NAME[self.dtype])

    def batch_size(self, size: Expr | int, last: bool) -> Self:
        return replace(self, shape=(*self.shape, size) if last else (size, *self.shape))


class Data(Op):
    """y = an array that belongs to the program"""

    held = MappingProxyType({"key": ArrayResource})
    key: ArrayResource

    def infer(self) -> Type:
        x = self.key.get()
        return Type(SHORT_NAME[x.dtype.name], tuple(x.shape))

    def eval(self, xp: ArrayNamespace) -> Array:
        return xp.asarray(self.key.get())


class Input(Op):
    """y is given by the caller, at every point of its domain

    Or it is a part of the input `of`: its values `at` these points, at steps along the same dims.
    """

    dtype: str
    shape: tuple[Expr | int, ...] = ()
    of: str = ""
    at_: tuple[Expr | int, ...] = ()

    def given(self, node: Any, env: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
        """Return the caller's array for an equation, [*dims, *shape], or a view of it."""
        array = arrays[self.of or node.name]
        if not self.of:
            return array
        array = array if hasattr(array, "shape") else np.asarray(array)
        pairs = zip(self.at_, node.domain, strict=True)
        return array[tuple(_steps(e, r, env) for e, r in pairs)]

    def infer(self) -> Type:
        return Type(self.dtype, self.shape)


def _steps(expr: Expr | int, extent: Range, env: Mapping[str, Any]) -> slice:
    """The values of an expression at the points of a range, with which it grows in steps."""
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

    def eval_at(self, xp: ArrayNamespace, env: Env) -> Array:
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
