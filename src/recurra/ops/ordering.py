"""Ops that order elements or put them at places: sort, top-k, running maximum, scatter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import LETTERS, Array, Axis, fresh_label
from recurra.ir.types import Type, is_float
from recurra.ops.elementwise import select
from recurra.ops.indexing import ArgSort, Take, nearest, wide_positions
from recurra.ops.scan import CumSum
from recurra.ops.source import Const, Value


def along(operand: Any, indices: Any, axis: int) -> Any:
    """y[.., k, ..] = x[.., i[.., k, ..], ..]"""
    full = LETTERS[: len(operand.shape)]
    new = full.replace(full[axis], fresh_label(full))
    return operand.apply(Take(labels=f"{full},{new}->{new}", axis=full[axis]), operand, indices)


def full_like(operand: Any, value: float, dtype: str) -> Any:
    """A constant of the shape of a tensor."""
    return operand.apply(Const(value=value, dtype=dtype, shape=operand.type.shape))


def positions(operand: Any, axis: int) -> Any:
    """y[.., k, ..] = k along an axis, i32, in the shape of a tensor."""
    ones = full_like(operand, 1, "i32")
    return ones.apply(CumSum(axis=axis), ones) - 1


class Sort(Axis):
    """y = x in ascending order along an axis; NaN comes last"""

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        if "bfloat16" in str(operand.dtype):  # NumPy sorts it wrongly with NaN
            wide = xp.asarray(operand, dtype="float32")
            return xp.asarray(xp.sort(wide, axis=self.axis), dtype=operand.dtype)
        return xp.sort(operand, axis=self.axis)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        order = operand.apply(ArgSort(axis=self.axis), operand)
        place = order.apply(ArgSort(axis=self.axis), order)  # in y, of each element of x
        return (along(gradient, place, self.axis),)


class TopK(Axis):
    """y = the positions of the `size` largest along an axis, in order; NaN is above all numbers.

    Of equals the first comes first.
    """

    size: Expr | int

    def infer(self, operand: Type) -> Type:
        size = super().infer(operand).shape[self.axis]
        if isinstance(self.size, int) and isinstance(size, int) and not 0 <= self.size <= size:
            raise TypeError(
                f"{self.name}: {operand} has no {self.size} elements on axis {self.axis}"
            )
        return Type(
            "i32", (*operand.shape[: self.axis], self.size, *operand.shape[self.axis + 1 :])
        )

    def run(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        size, own = evaluate(self.size, env), getattr(xp, "topk", None)
        if own is not None and str(operand.dtype) in ("float32", "float16", "bfloat16"):
            return own(operand, size, self.axis)
        reverse = xp.flip(operand, axis=self.axis)  # so that the first of equals is the last
        order = ArgSort(axis=self.axis).eval(xp, reverse)
        descending = operand.shape[self.axis] - 1 - xp.flip(order, axis=self.axis)
        return descending[(*(slice(None),) * self.axis, slice(size))]


class CumMax(Axis):
    """y[k] = max(x[0], .., x[k])"""

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        own = getattr(xp, "cummax", None)
        return own(operand, self.axis) if own else xp.maximum.accumulate(operand, self.axis)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        """Add the gradient at each maximum's place: of equal elements the last, as in torch."""
        places, _ = select(operand == result, positions(operand, self.axis))
        last = places.apply(self, places)
        nothing = full_like(operand, 0.0, gradient.type.dtype)
        return (gradient.apply(Scatter(axis=self.axis, reduce="add"), nothing, last, gradient),)


Reduce = Literal["", "add", "min", "max"]
MONOIDS: Mapping[Reduce, str] = {"add": "add", "min": "minimum", "max": "maximum"}


class Scatter(Axis):
    """y = x, but v[.., k, ..] at place i[.., k, ..] of an axis; the last of several

    With `reduce`, the sum, minimum or maximum of x and all of them. Other places are ignored.
    """

    reduce: Reduce = ""

    def infer(self, source: Type, places: Type, values: Type) -> Type:  # pyright: ignore[reportIncompatibleMethodOverride]
        if is_float(places.dtype) or places.dtype == "bool":
            raise TypeError(f"scatter: the places have type {places.dtype}, not an integer")
        super().infer(source)
        sizes = [[s for k, s in enumerate(t.shape) if k != self.axis] for t in (source, places)]
        if places.shape != values.shape or sizes[0] != sizes[1] or places.rank != source.rank:
            raise TypeError(
                f"scatter: {values} at places {places} of {source}: "
                f"they differ off axis {self.axis}"
            )
        if source.dtype != values.dtype:
            raise TypeError(f"scatter: operands have types {source.dtype}, {values.dtype}")
        return source

    def eval(self, xp: ArrayNamespace, operand: Array, indices: Array, values: Array) -> Array:
        axis, n, rank = self.axis, operand.shape[self.axis], len(operand.shape)
        if not indices.shape[axis]:
            return operand
        indices = wide_positions(xp, indices)
        end = xp.full((), n, dtype=indices.dtype)
        indices = xp.where((indices >= 0) & (indices < n), indices, end)
        if self.reduce or indices.shape[axis] == 1:
            return joined_at(xp, MONOIDS.get(self.reduce, "set"), operand, indices, values, axis)
        column = tuple(-1 if k == axis else 1 for k in range(rank))
        order = xp.reshape(xp.arange(indices.shape[axis], dtype="int32"), column)
        none = xp.full(operand.shape, -1, dtype="int32")
        last = joined_at(xp, "maximum", none, indices, xp.broadcast_to(order, indices.shape), axis)
        taken = xp.take_along_axis(values, xp.maximum(last, xp.zeros_like(last)), axis=axis)
        return xp.where(last >= 0, taken, operand)

    def vjp(
        self, gradient: Tensor, result: Tensor, operand: Tensor, indices: Tensor, values: Tensor
    ) -> Cotangents:
        n = operand.shape[self.axis]
        end = n if isinstance(n, int) else indices.apply(Value(expr=n, dtype=indices.dtype))
        inside, near = (indices >= 0) & (indices < end), nearest(indices, n)
        share = gradient
        if self.reduce == "add":
            return gradient, None, select(inside, along(share, near, self.axis))[0]
        if self.reduce:  # equals share it, as in torch
            kept = operand == result
            inside = inside & (along(result, near, self.axis) == values)
            one, ones = kept.cast(gradient.type.dtype), inside.cast(gradient.type.dtype)
            count = one.apply(Scatter(axis=self.axis, reduce="add"), one, indices, ones)
            share = gradient / count
        else:
            order = positions(indices, self.axis)
            none = operand.cast("i32") * 0 - 1  # an operand, so that it ends where rows end
            last = order.apply(self, none, indices, order)
            kept = last < 0
            inside = inside & (along(last, near, self.axis) == order)
        return select(kept, share)[0], None, select(inside, along(share, near, self.axis))[0]


def joined_at(
    xp: ArrayNamespace, join: str, operand: Array, indices: Array, values: Array, axis: int
) -> Array:
    """Join each of `values` to the element of `operand` at its place along an axis.

    Args:
        join: "add", "minimum", "maximum", or "set", for places that all differ.
        indices: the places; values at the place after the last element are ignored.
    """
    own = getattr(xp, "joined_at", numpy_joined_at)
    return own(join, operand, indices, values, axis)


def numpy_joined_at(
    join: str, array: np.ndarray, indices: np.ndarray, values: np.ndarray, axis: int
) -> np.ndarray:
    """`joined_at` for NumPy arrays."""
    at: list[Any] = list(np.indices(indices.shape, sparse=True))
    at[axis] = indices
    front = (*(slice(None),) * axis, slice(array.shape[axis]))
    y = np.empty([n + int(k == axis) for k, n in enumerate(array.shape)], array.dtype)
    y[front] = array
    if join == "set":
        y[tuple(at)] = values
    else:
        getattr(np, join).at(y, tuple(at), values)
    return y[front]
