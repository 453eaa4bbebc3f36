"""Scans along one axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from recurra.ir.expr import evaluate
from recurra.ir.op import Array, Axis, Op
from recurra.ir.types import Type
from recurra.ops.movement import Flip


class CumSum(Axis):
    """y[k] = x[0] + .. + x[k]"""

    def eval(self, xp: Any, x: Array) -> Array:
        return xp.cumsum(x, axis=self.axis)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        turned = g.apply(Flip(axis=self.axis), g)
        return (g.apply(Flip(axis=self.axis), turned.apply(self, turned)),)


class DiscountedSum(Op, name="discounted_sum"):
    """y = Σₖ γᵏ x[k] along an axis"""

    gamma: float
    axis: int = 0

    def infer(self, x: Type) -> Type:
        return Type(x.dtype, tuple(s for k, s in enumerate(x.shape) if k != self.axis))

    def eval(self, xp: Any, x: Array) -> Array:
        shape = tuple(-1 if k == self.axis else 1 for k in range(len(x.shape)))
        return xp.sum(x * xp.reshape(self.weights(xp, x), shape), axis=self.axis, dtype=x.dtype)

    def weights(self, xp: Any, x: Array) -> Array:
        n = x.shape[self.axis]
        return xp.asarray(self.gamma, dtype=x.dtype) ** xp.arange(n, dtype=x.dtype)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g.apply(Discounts(gamma=self.gamma, axis=self.axis, size=x.shape[self.axis]), g),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)


class Discounts(Op):
    """y[k] = γᵏ x on a new axis: the transpose of discounted_sum"""

    gamma: float
    axis: int
    size: Any

    def infer(self, x: Type) -> Type:
        return Type(x.dtype, (*x.shape[: self.axis], self.size, *x.shape[self.axis :]))

    def run(self, xp: Any, env: Any, x: Array) -> Array:
        n = evaluate(self.size, env)
        w = xp.asarray(self.gamma, dtype=x.dtype) ** xp.arange(n, dtype=x.dtype)
        shape = tuple(n if k == self.axis else 1 for k in range(len(x.shape) + 1))
        return xp.expand_dims(x, axis=self.axis) * xp.reshape(w, shape)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g.apply(DiscountedSum(gamma=self.gamma, axis=self.axis), g),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)
