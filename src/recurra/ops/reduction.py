"""Reductions over axes, and the streamed fold that a loop accumulates."""

from __future__ import annotations

import math
from typing import Any, Self

from recurra.ir.op import LETTERS, Array, Op, Reduction
from recurra.ir.types import SHORT_NAME, Type, is_float
from recurra.ops.elementwise import Equal, Maximum
from recurra.ops.movement import Expand


def spread(g: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """`g` copied along the axes that a reduction of `x` lost."""
    full = LETTERS[: len(x.shape)]
    kept = "".join(c for k, c in enumerate(full) if k not in axes)
    return g.apply(Expand(labels=f"{kept}->{full}", sizes=tuple(x.shape[a] for a in axes)), g)


class Sum(Reduction):
    """y = Σ x over axes"""

    monoid = "add"

    def infer(self, x: Type) -> Type:
        if x.dtype == "bool":
            raise TypeError("sum: the operand has type bool; count truth values as numbers")
        return super().infer(x)

    def eval(self, xp: Any, x: Array) -> Array:
        return xp.sum(x, axis=self.axes, dtype=x.dtype)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (spread(g, x, self.axes),)


class Extremum(Reduction, abstract=True):
    """The largest or smallest, of nothing the identity; ties share the cotangent."""

    def whole(self, xp: Any, x: Array) -> Array:
        """`x`, or where an axis to fold is empty, one row of the identity."""
        if all(x.shape[a] for a in self.axes):
            return x
        shape = tuple(1 if k in self.axes else n for k, n in enumerate(x.shape))
        return xp.full(shape, identity(xp, str(self.monoid), x.dtype), dtype=x.dtype)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        hit = x.apply(Equal(), x, spread(y, x, self.axes)).cast(x.type.dtype)
        count = hit.apply(Sum(axes=self.axes), hit)
        some = count.apply(Maximum(), count, count * 0 + 1)  # of nothing, nothing is the largest
        return (spread(g / some, x, self.axes) * hit,)


class Max(Extremum):
    """y = max x over axes"""

    monoid = "maximum"

    def eval(self, xp: Any, x: Array) -> Array:
        return xp.max(self.whole(xp, x), axis=self.axes)


class Min(Extremum):
    """y = min x over axes"""

    monoid = "minimum"

    def eval(self, xp: Any, x: Array) -> Array:
        return xp.min(self.whole(xp, x), axis=self.axes)


class Any_(Reduction, name="any"):
    """y = is any of x true"""

    monoid = "logical_or"

    def eval(self, xp: Any, x: Array) -> Array:
        return xp.any(x, axis=self.axes)


class All(Reduction):
    """y = is every x true"""

    monoid = "logical_and"

    def eval(self, xp: Any, x: Array) -> Array:
        return xp.all(x, axis=self.axes)


class ArgMax(Reduction):
    """y = the first position of the largest along one axis"""

    def infer(self, x: Type) -> Type:
        if len(self.axes) != 1:
            raise TypeError(f"argmax: along one axis, not {self.axes}")
        return Type("i32", super().infer(x).shape)

    def eval(self, xp: Any, x: Array) -> Array:
        return xp.argmax(x, axis=self.axes[0]).astype("int32")


class Fold(Op):
    """y = x₁ ∘ x₂ ∘ …, over `rank` leading axes that were read as ranges; any order is right

    A loop that produces x may keep the running value and never store x.
    """

    monoid_of: str = "add"  # the reduction that this streams
    rank: int = 1

    def infer(self, x: Type) -> Type:
        if self.monoid_of not in REDUCTION or self.rank > x.rank:
            raise TypeError(f"fold: no {self.monoid_of!r} over {self.rank} axes of {x}")
        return Type(x.dtype, x.shape[self.rank :])

    def eval(self, xp: Any, x: Array) -> Array:
        return REDUCTION[self.monoid_of](axes=tuple(range(self.rank))).eval(xp, x)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self | None:
        return self if last else None

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return REDUCTION[self.monoid_of](axes=tuple(range(self.rank))).vjp(g, y, x)


REDUCTION: dict[str, type[Reduction]] = {
    c.monoid: c for c in (Sum, Max, Min, Any_, All) if c.monoid is not None
}
IDENTITY = {
    "add": 0.0,
    "maximum": -float("inf"),
    "minimum": float("inf"),
    "logical_or": False,
    "logical_and": True,
}


def identity(xp: Any, monoid: str, dtype: Any) -> Any:
    """The element that leaves every other as it is, in a type: integers have no infinity."""
    e = IDENTITY[monoid]
    if abs(e) == math.inf and not is_float(SHORT_NAME[str(dtype).split(".")[-1]]):
        limits = xp.iinfo(dtype)
        return limits.max if e > 0 else limits.min
    return e
