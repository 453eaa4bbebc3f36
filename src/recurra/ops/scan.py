"""Scans along one axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from recurra.ir.arrays import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import Array, Axis, Op, floating, summable
from recurra.ir.types import Type
from recurra.ops.elementwise import Where, one_like, select


class CumSum(Axis):
    """y[k] = x[0] + .. + x[k]; with `reverse`, from the end: x[k] + x[k+1] + .."""

    reverse: bool = False

    def infer(self, x: Type) -> Type:
        summable(self.name, x.dtype)
        return super().infer(x)

    def eval(self, xp: ArrayNamespace, x: Array) -> Array:
        if self.reverse:
            turned = xp.cumsum(xp.flip(x, axis=self.axis), axis=self.axis, dtype=x.dtype)
            return xp.flip(turned, axis=self.axis)
        return xp.cumsum(x, axis=self.axis, dtype=x.dtype)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g.apply(replace(self, reverse=not self.reverse), g),)


class CumProd(Axis):
    """y[k] = x[0] · .. · x[k]"""

    def infer(self, x: Type) -> Type:
        summable(self.name, x.dtype)
        return super().infer(x)

    def eval(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.cumprod(x, axis=self.axis, dtype=x.dtype)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        """Σ over j >= k of g[j] · y[j] / x[k]; for the first zero, of y as if it were 1 instead.

        Behind the first zero every product of the others has that zero in it.
        """
        zero = x == 0.0
        zeros = zero.cast("i32")
        passed = zeros.apply(CumSum(axis=self.axis), zeros)
        first = zero & (passed == 1)
        one = x.apply(one_like(x))
        rest = x.apply(Where(), first, one, x)
        after = _from_here(g * rest.apply(self, rest), self.axis)
        divisor = x.apply(Where(), zero, one, x)
        before, _ = select(passed == 0, _from_here(g * y, self.axis) / divisor)
        return (g.apply(Where(), first, after, before),)


def _from_here(x: Any, axis: int) -> Any:
    """x[k] + x[k+1] + .."""
    return x.apply(CumSum(axis=axis, reverse=True), x)


def powers(xp: ArrayNamespace, gamma: float, count: int, dtype: Any, axis: int, rank: int) -> Array:
    """γᵏ for k < n, along one of `rank` axes"""
    w = xp.asarray(gamma, dtype=dtype) ** xp.arange(count, dtype=dtype)
    return xp.reshape(w, tuple(count if k == axis else 1 for k in range(rank)))


class DiscountedSum(Op, name="discounted_sum"):
    """y = Σₖ γᵏ x[k] along an axis"""

    gamma: float
    axis: int = 0

    def infer(self, x: Type) -> Type:
        floating(self.name, x.dtype)
        if not 0 <= self.axis < x.rank:
            raise TypeError(f"{self.name}: {x} has no axis {self.axis}")
        return Type(x.dtype, tuple(s for k, s in enumerate(x.shape) if k != self.axis))

    def eval(self, xp: ArrayNamespace, x: Array) -> Array:
        n, rank = x.shape[self.axis], len(x.shape)
        w = powers(xp, self.gamma, n, x.dtype, self.axis, rank)
        return xp.sum(x * w, axis=self.axis, dtype=x.dtype)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g.apply(Discounts(gamma=self.gamma, axis=self.axis, size=x.shape[self.axis]), g),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)


class Discounts(Op):
    """y[k] = γᵏ x on a new axis: the transpose of discounted_sum"""

    gamma: float
    axis: int
    size: Expr | int

    def infer(self, x: Type) -> Type:
        floating(self.name, x.dtype)
        return Type(x.dtype, (*x.shape[: self.axis], self.size, *x.shape[self.axis :]))

    def run(self, xp: ArrayNamespace, env: Env, x: Array) -> Array:
        n = evaluate(self.size, env)
        w = powers(xp, self.gamma, n, x.dtype, self.axis, len(x.shape) + 1)
        return xp.expand_dims(x, axis=self.axis) * w

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g.apply(DiscountedSum(gamma=self.gamma, axis=self.axis), g),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)
