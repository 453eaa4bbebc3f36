"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.op import Array, Axis, floating
from recurra.ir.types import Type
from recurra.ops.reduction import Sum, spread


class Normalized(Axis, abstract=True):
    """An operator that normalizes floats along an axis, which may be empty."""

    def infer(self, operand: Type) -> Type:
        floating(self.name, operand.dtype)
        return super().infer(operand)

    def shifted(self, xp: ArrayNamespace, operand: Array) -> Array:
        """x - max x, which keeps eˣ in range."""
        if not operand.shape[self.axis]:
            return operand
        return operand - xp.max(operand, axis=self.axis, keepdims=True)


class Softmax(Normalized):
    """y = eˣ / Σ eˣ"""

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        e = xp.exp(self.shifted(xp, operand))
        return e / xp.sum(e, axis=self.axis, keepdims=True)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        inner = gradient.apply(Sum(axes=(self.axis,)), gradient * result)
        return (result * (gradient - spread(inner, operand, (self.axis,))),)


class LogSoftmax(Normalized, name="log_softmax"):
    """y = x - ln Σ eˣ"""

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        operand = self.shifted(xp, operand)
        return operand - xp.log(xp.sum(xp.exp(operand), axis=self.axis, keepdims=True))

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        p = operand.apply(Softmax(axis=self.axis), operand)
        total = gradient.apply(Sum(axes=(self.axis,)), gradient)
        return (gradient - p * spread(total, operand, (self.axis,)),)
