"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from recurra.ir.arrays import ArrayNamespace, Cotangents, Tensor
from recurra.ir.op import Array, Axis, floating
from recurra.ir.types import Type
from recurra.ops.reduction import Sum, spread


class Normalized(Axis, abstract=True):
    """Of floats, along an axis; of no elements there is nothing to normalize."""

    def infer(self, x: Type) -> Type:
        floating(self.name, x.dtype)
        return super().infer(x)

    def shifted(self, xp: ArrayNamespace, x: Array) -> Array:
        """x - max x, which keeps eˣ in range."""
        return x - xp.max(x, axis=self.axis, keepdims=True) if x.shape[self.axis] else x


class Softmax(Normalized):
    """y = eˣ / Σ eˣ"""

    def eval(self, xp: ArrayNamespace, x: Array) -> Array:
        e = xp.exp(self.shifted(xp, x))
        return e / xp.sum(e, axis=self.axis, keepdims=True)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        inner = g.apply(Sum(axes=(self.axis,)), g * y)
        return (y * (g - spread(inner, x, (self.axis,))),)


class LogSoftmax(Normalized, name="log_softmax"):
    """y = x - ln Σ eˣ"""

    def eval(self, xp: ArrayNamespace, x: Array) -> Array:
        x = self.shifted(xp, x)
        return x - xp.log(xp.sum(xp.exp(x), axis=self.axis, keepdims=True))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        p = x.apply(Softmax(axis=self.axis), x)
        total = g.apply(Sum(axes=(self.axis,)), g)
        return (g - p * spread(total, x, (self.axis,)),)
