"""Reductions over axes, and the fold, which a loop accumulates."""

from __future__ import annotations

from typing import Any

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.op import LETTERS, Array, Op, Reduction, summable
from recurra.ir.types import NUMPY_NAME, Type, is_float
from recurra.ops.elementwise import Equal, Maximum, Where, one_like, select, short_type
from recurra.ops.movement import Expand


def spread(gradient: Any, operand: Any, axes: tuple[int, ...]) -> Any:
    """Copy `gradient` along the axes over which `operand` was reduced."""
    full = LETTERS[: len(operand.shape)]
    kept = "".join(c for k, c in enumerate(full) if k not in axes)
    sizes = tuple(operand.shape[a] for a in axes)
    return gradient.apply(Expand(labels=f"{kept}->{full}", sizes=sizes), gradient)


class Sum(Reduction):
    """y = Σ x over axes"""

    monoid = "add"

    def infer(self, operand: Type) -> Type:
        summable(self.name, operand.dtype)
        return super().infer(operand)

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.sum(operand, axis=self.axes, dtype=operand.dtype)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (spread(gradient, operand, self.axes),)


class Prod(Reduction):
    """y = Π x over axes"""

    monoid = "mul"

    def infer(self, operand: Type) -> Type:
        summable(self.name, operand.dtype)
        return super().infer(operand)

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.prod(operand, axis=self.axes, dtype=operand.dtype)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        """The product of the other elements, which is 0 if one of these is 0."""
        zero = operand == 0.0
        rest = operand.apply(Where(), zero, operand.apply(one_like(operand)), operand)
        total = spread(rest.apply(self, rest), operand, self.axes)
        zeros = zero.cast("i32")
        others = spread(zeros.apply(Sum(axes=self.axes), zeros), operand, self.axes) - zeros
        return (select(others == 0, spread(gradient, operand, self.axes) * (total / rest))[0],)


class Extremum(Reduction, abstract=True):
    """The largest or smallest element, or the identity of none; ties share the cotangent."""

    def nonempty(self, xp: ArrayNamespace, operand: Array) -> Array:
        """`operand`, or one row of the identity if a reduced axis is empty."""
        if all(operand.shape[a] for a in self.axes):
            return operand
        shape = tuple(1 if k in self.axes else n for k, n in enumerate(operand.shape))
        return xp.full(shape, identity(str(self.monoid), short_type(operand)), dtype=operand.dtype)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        hit = operand.apply(Equal(), operand, spread(result, operand, self.axes)).cast(
            operand.type.dtype
        )
        count = hit.apply(Sum(axes=self.axes), hit)
        some = count.apply(Maximum(), count, count * 0 + 1)  # no element is the largest of none
        return (spread(gradient / some, operand, self.axes) * hit,)


class Max(Extremum):
    """y = max x over axes"""

    monoid = "maximum"

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.max(self.nonempty(xp, operand), axis=self.axes)


class Min(Extremum):
    """y = min x over axes"""

    monoid = "minimum"

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.min(self.nonempty(xp, operand), axis=self.axes)


class Any_(Reduction, name="any"):
    """y = is any of x true"""

    monoid = "logical_or"

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.any(operand, axis=self.axes)


class All(Reduction):
    """y = is every x true"""

    monoid = "logical_and"

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.all(operand, axis=self.axes)


class ArgMax(Reduction):
    """y = the first position of the largest along one axis"""

    def infer(self, operand: Type) -> Type:
        if len(self.axes) != 1:
            raise TypeError(f"argmax: along one axis, not {self.axes}")
        return Type("i32", super().infer(operand).shape)

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.asarray(xp.argmax(operand, axis=self.axes[0]), dtype="int32")


class Fold(Op):
    """y = x₁ ∘ x₂ ∘ …, over `rank` leading axes that were read as ranges, in any order

    A loop that produces x may keep the running value and never store x.
    """

    monoid_of: str = "add"  # of the reduction that it streams
    rank: int = 1

    def infer(self, operand: Type) -> Type:
        if self.monoid_of not in REDUCTION or self.rank > operand.rank:
            raise TypeError(f"fold: no {self.monoid_of!r} over {self.rank} axes of {operand}")
        if self.monoid_of == Sum.monoid:
            summable(self.name, operand.dtype)
        return Type(operand.dtype, operand.shape[self.rank :])

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return REDUCTION[self.monoid_of](axes=tuple(range(self.rank))).eval(xp, operand)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Op:
        """Batch it: with an axis before the ranges it is a plain reduction."""
        return self if last else REDUCTION[self.monoid_of](axes=tuple(range(1, self.rank + 1)))

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return REDUCTION[self.monoid_of](axes=tuple(range(self.rank))).vjp(
            gradient, result, operand
        )


REDUCTION: dict[str, type[Reduction]] = {
    c.monoid: c for c in (Sum, Prod, Max, Min, Any_, All) if c.monoid is not None
}


def identity(monoid: str, dtype: str) -> float:
    """The neutral number of a monoid: 0 of add, the lowest of maximum."""
    match monoid:
        case "add" | "logical_or":
            return 0.0 if is_float(dtype) else 0 if dtype != "bool" else False
        case "mul":
            return 1.0 if is_float(dtype) else 1
        case "logical_and":
            return True
        case "maximum":
            return lowest(dtype)
        case _:
            assert monoid == "minimum", f"{monoid} has no identity"
            return highest(dtype)


def lowest(dtype: str) -> float:
    """The smallest number of a type."""
    if is_float(dtype):
        return -float("inf")
    return False if dtype == "bool" else int(np.iinfo(NUMPY_NAME[dtype]).min)


def highest(dtype: str) -> float:
    """The largest number of a type."""
    if is_float(dtype):
        return float("inf")
    return True if dtype == "bool" else int(np.iinfo(NUMPY_NAME[dtype]).max)
