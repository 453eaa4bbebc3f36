"""Scans along one axis, and discounted sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import Array, Axis, Op, floating, summable
from recurra.ir.types import Type
from recurra.ops.elementwise import Where, one_like, select


class CumSum(Axis):
    """y[k] = x[0] + .. + x[k]; with `reverse`, from the end: x[k] + x[k+1] + .."""

    reverse: bool = False

    def infer(self, operand: Type) -> Type:
        summable(self.name, operand.dtype)
        return super().infer(operand)

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        if self.reverse:
            forward = replace(self, reverse=False)
            return xp.flip(forward.eval(xp, xp.flip(operand, axis=self.axis)), axis=self.axis)
        return xp.cumsum(operand, axis=self.axis, dtype=operand.dtype)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient.apply(replace(self, reverse=not self.reverse), gradient),)


class CumProd(Axis):
    """y[k] = x[0] · .. · x[k]"""

    def infer(self, operand: Type) -> Type:
        summable(self.name, operand.dtype)
        return super().infer(operand)

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.cumprod(operand, axis=self.axis, dtype=operand.dtype)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        """Σ over j >= k of g[j] · y[j] / x[k]; for the first zero, y is as if that were 1.

        After the first zero, all products of the other elements are 0.
        """
        zero = operand == 0.0
        is_zero = zero.cast("i32")
        zeros = is_zero.apply(CumSum(axis=self.axis), is_zero)
        first = zero & (zeros == 1)
        one = operand.apply(one_like(operand))
        rest = operand.apply(Where(), first, one, operand)
        after = _reverse_sum(gradient * rest.apply(self, rest), self.axis)
        divisor = operand.apply(Where(), zero, one, operand)
        before, _ = select(zeros == 0, _reverse_sum(gradient * result, self.axis) / divisor)
        return (gradient.apply(Where(), first, after, before),)


def _reverse_sum(operand: Any, axis: int) -> Any:
    """x[k] + x[k+1] + .."""
    return operand.apply(CumSum(axis=axis, reverse=True), operand)


def powers(xp: ArrayNamespace, gamma: float, count: int, dtype: Any, axis: int, rank: int) -> Array:
    """γᵏ for k < n, along one of `rank` axes"""
    w = xp.asarray(gamma, dtype=dtype) ** xp.arange(count, dtype=dtype)
    return xp.reshape(w, tuple(count if k == axis else 1 for k in range(rank)))


class DiscountedSum(Op, name="discounted_sum"):
    """y = Σₖ γᵏ x[k] along an axis"""

    gamma: float
    axis: int = 0

    def infer(self, operand: Type) -> Type:
        floating(self.name, operand.dtype)
        if not 0 <= self.axis < operand.rank:
            raise TypeError(f"{self.name}: {operand} has no axis {self.axis}")
        return Type(operand.dtype, tuple(s for k, s in enumerate(operand.shape) if k != self.axis))

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        n, rank = operand.shape[self.axis], len(operand.shape)
        w = powers(xp, self.gamma, n, operand.dtype, self.axis, rank)
        return xp.sum(operand * w, axis=self.axis, dtype=operand.dtype)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        discounts = Discounts(gamma=self.gamma, axis=self.axis, size=operand.shape[self.axis])
        return (gradient.apply(discounts, gradient),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)


class Discounts(Op):
    """y[k] = γᵏ x on a new axis: the transpose of discounted_sum"""

    gamma: float
    axis: int
    size: Expr | int

    def infer(self, operand: Type) -> Type:
        floating(self.name, operand.dtype)
        return Type(
            operand.dtype, (*operand.shape[: self.axis], self.size, *operand.shape[self.axis :])
        )

    def run(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        n = evaluate(self.size, env)
        w = powers(xp, self.gamma, n, operand.dtype, self.axis, len(operand.shape) + 1)
        return xp.expand_dims(operand, axis=self.axis) * w

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient.apply(DiscountedSum(gamma=self.gamma, axis=self.axis), gradient),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)
