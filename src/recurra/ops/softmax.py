"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from typing import Any

from recurra.ir.op import Array, Axis
from recurra.ops.reduction import Sum, spread


class Softmax(Axis):
    """y = eˣ / Σ eˣ"""

    def eval(self, xp: Any, x: Array) -> Array:
        e = xp.exp(x - xp.max(x, axis=self.axis, keepdims=True))
        return e / xp.sum(e, axis=self.axis, keepdims=True)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        inner = g.apply(Sum(axes=(self.axis,)), g * y)
        return (y * (g - spread(inner, x, (self.axis,))),)


class LogSoftmax(Axis, name="log_softmax"):
    """y = x - ln Σ eˣ"""

    def eval(self, xp: Any, x: Array) -> Array:
        x = x - xp.max(x, axis=self.axis, keepdims=True)
        return x - xp.log(xp.sum(xp.exp(x), axis=self.axis, keepdims=True))

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        p = x.apply(Softmax(axis=self.axis), x)
        total = g.apply(Sum(axes=(self.axis,)), g)
        return (g - p * spread(total, x, (self.axis,)),)
