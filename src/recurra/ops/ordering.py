"""Ops by the order of elements, or that put elements at places: sort, running maximum, scatter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import LETTERS, Array, Axis, fresh_label
from recurra.ir.types import Type, is_float
from recurra.ops.elementwise import select
from recurra.ops.indexing import ArgSort, Take, nearest
from recurra.ops.scan import CumSum
from recurra.ops.source import Const, Value


def along(operand: Any, indices: Any, axis: int) -> Any:
    """y[.., k, ..] = x[.., i[.., k, ..], ..]"""
    full = LETTERS[: len(operand.shape)]
    new = full.replace(full[axis], fresh_label(full))
    return operand.apply(Take(labels=f"{full},{new}->{new}", axis=full[axis]), operand, indices)


def filled(operand: Any, value: float, dtype: str) -> Any:
    """One number in the shape of a tensor."""
    return operand.apply(Const(value=value, dtype=dtype, shape=operand.type.shape))


def positions(operand: Any, axis: int) -> Any:
    """y[.., k, ..] = k along an axis, of the shape of a tensor, i32."""
    ones = filled(operand, 1, "i32")
    return ones.apply(CumSum(axis=axis), ones) - 1


class Sort(Axis):
    """y = x in ascending order along an axis; NaN comes last"""

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        if "bfloat16" in str(operand.dtype):  # which NumPy sorts wrongly where something is NaN
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
        order = ArgSort(axis=self.axis).eval(
            xp, xp.flip(operand, axis=self.axis)
        )  # its end comes first
        found = operand.shape[self.axis] - 1 - xp.flip(order, axis=self.axis)
        key = tuple(slice(size if k == self.axis else None) for k in range(len(operand.shape)))
        return found[key]


class CumMax(Axis):
    """y[k] = max(x[0], .., x[k])"""

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        own = getattr(xp, "cummax", None)  # a function that NumPy has by another name
        return (
            xp.maximum.accumulate(operand, axis=self.axis)
            if own is None
            else own(operand, self.axis)
        )

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        """The gradient goes to each maximum's place: of equal elements to the last, as in torch."""
        found, _ = select(operand == result, positions(operand, self.axis))
        last = found.apply(self, found)
        nothing = filled(operand, 0.0, gradient.type.dtype)
        return (gradient.apply(Scatter(axis=self.axis, reduce="add"), nothing, last, gradient),)


Reduce = Literal["", "add", "min", "max"]
MONOIDS: Mapping[Reduce, str] = {"add": "add", "min": "minimum", "max": "maximum"}


class Scatter(Axis):
    """y = x, but v[.., k, ..] at place i[.., k, ..] of an axis, of several the last

    With `reduce`, x joined to all of them: their sum, the least or the largest. Places off the axis
    are left out.
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
        indices = xp.asarray(
            indices, dtype=indices.dtype if str(indices.dtype).endswith("64") else "int32"
        )
        indices = xp.where(
            (indices >= 0) & (indices < n), indices, xp.full((), n, dtype=indices.dtype)
        )  # behind the end
        if self.reduce or indices.shape[axis] == 1:
            return joined_at(xp, MONOIDS.get(self.reduce, "set"), operand, indices, values, axis)
        column = tuple(-1 if k == axis else 1 for k in range(rank))
        order = xp.reshape(xp.arange(indices.shape[axis], dtype="int32"), column)
        none = xp.full(operand.shape, -1, dtype="int32")
        last = joined_at(xp, "maximum", none, indices, xp.broadcast_to(order, indices.shape), axis)
        found = xp.take_along_axis(values, xp.maximum(last, xp.zeros_like(last)), axis=axis)
        return xp.where(last >= 0, found, operand)

    def vjp(
        self, gradient: Tensor, result: Tensor, operand: Tensor, indices: Tensor, values: Tensor
    ) -> Cotangents:
        n = operand.shape[self.axis]
        end = n if isinstance(n, int) else indices.apply(Value(expr=n, dtype=indices.dtype))
        heard, near = (indices >= 0) & (indices < end), nearest(indices, n)
        if self.reduce == "add":
            return gradient, None, select(heard, along(gradient, near, self.axis))[0]
        if self.reduce:  # equals share it, as in torch
            mine, here = operand == result, heard & (along(result, near, self.axis) == values)
            one, ones = mine.cast(gradient.type.dtype), here.cast(gradient.type.dtype)
            gradient = gradient / one.apply(
                Scatter(axis=self.axis, reduce="add"), one, indices, ones
            )
            return (
                select(mine, gradient)[0],
                None,
                select(here, along(gradient, near, self.axis))[0],
            )
        order = positions(indices, self.axis)
        none = operand.cast("i32") * 0 - 1  # made of x: where rows end, it ends as they do
        last = order.apply(self, none, indices, order)
        heard = heard & (along(last, near, self.axis) == order)
        return (
            select(last < 0, gradient)[0],
            None,
            select(heard, along(gradient, near, self.axis))[0],
        )


def joined_at(
    xp: ArrayNamespace, join: str, operand: Array, indices: Array, values: Array, axis: int
) -> Array:
    """`operand` where each of `values` is joined to what lies at its place along an axis.

    join: "add", "minimum", "maximum", or "set", of places that all differ. What has the place
    behind the end is left out.
    """
    own = getattr(xp, "joined_at", scattered)
    return own(join, operand, indices, values, axis)


def scattered(
    join: str, array: np.ndarray, indices: np.ndarray, values: np.ndarray, axis: int
) -> np.ndarray:
    """`joined_at` of NumPy's arrays."""
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
