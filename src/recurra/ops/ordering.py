"""Ops by the order of elements, or that put elements at places: sort, running maximum, scatter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from recurra.ir.arrays import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import LETTERS, Array, Axis, fresh_label
from recurra.ir.types import Type, is_float
from recurra.ops.elementwise import select
from recurra.ops.indexing import ArgSort, Take, nearest
from recurra.ops.scan import CumSum
from recurra.ops.source import Const, Value


def along(x: Any, i: Any, axis: int) -> Any:
    """y[.., k, ..] = x[.., i[.., k, ..], ..]"""
    full = LETTERS[: len(x.shape)]
    new = full.replace(full[axis], fresh_label(full))
    return x.apply(Take(labels=f"{full},{new}->{new}", axis=full[axis]), x, i)


def filled(x: Any, value: float, dtype: str) -> Any:
    """One number in the shape of a tensor."""
    return x.apply(Const(value=value, dtype=dtype, shape=x.type.shape))


def positions(x: Any, axis: int) -> Any:
    """y[.., k, ..] = k along an axis, of the shape of a tensor, i32."""
    ones = filled(x, 1, "i32")
    return ones.apply(CumSum(axis=axis), ones) - 1


class Sort(Axis):
    """y = x in ascending order along an axis; NaN comes last"""

    def eval(self, xp: ArrayNamespace, x: Array) -> Array:
        if "bfloat16" in str(x.dtype):  # which NumPy sorts wrongly where something is NaN
            wide = xp.asarray(x, dtype="float32")
            return xp.asarray(xp.sort(wide, axis=self.axis), dtype=x.dtype)
        return xp.sort(x, axis=self.axis)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        order = x.apply(ArgSort(axis=self.axis), x)
        place = order.apply(ArgSort(axis=self.axis), order)  # in y, of each element of x
        return (along(g, place, self.axis),)


class TopK(Axis):
    """y = the positions of the `size` largest along an axis, in order; NaN is above all numbers.

    Of equals the first comes first.
    """

    size: Expr | int

    def infer(self, x: Type) -> Type:
        size = super().infer(x).shape[self.axis]
        if isinstance(self.size, int) and isinstance(size, int) and not 0 <= self.size <= size:
            raise TypeError(f"{self.name}: {x} has no {self.size} elements on axis {self.axis}")
        return Type("i32", (*x.shape[: self.axis], self.size, *x.shape[self.axis + 1 :]))

    def run(self, xp: ArrayNamespace, env: Env, x: Array) -> Array:
        size, own = evaluate(self.size, env), getattr(xp, "topk", None)
        if own is not None and str(x.dtype) in ("float32", "float16", "bfloat16"):
            return own(x, size, self.axis)
        order = ArgSort(axis=self.axis).eval(xp, xp.flip(x, axis=self.axis))  # its end comes first
        found = x.shape[self.axis] - 1 - xp.flip(order, axis=self.axis)
        key = tuple(slice(size if k == self.axis else None) for k in range(len(x.shape)))
        return found[key]


class CumMax(Axis):
    """y[k] = max(x[0], .., x[k])"""

    def eval(self, xp: ArrayNamespace, x: Array) -> Array:
        own = getattr(xp, "cummax", None)  # a function that NumPy has by another name
        return xp.maximum.accumulate(x, axis=self.axis) if own is None else own(x, self.axis)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        """To where each maximum was found: of equal elements to the last so far, as in torch."""
        found, _ = select(x == y, positions(x, self.axis))
        last = found.apply(self, found)
        nothing = filled(x, 0.0, g.type.dtype)
        return (g.apply(Scatter(axis=self.axis, reduce="add"), nothing, last, g),)


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

    def eval(self, xp: ArrayNamespace, x: Array, i: Array, v: Array) -> Array:
        axis, n, rank = self.axis, x.shape[self.axis], len(x.shape)
        if not i.shape[axis]:
            return x
        i = xp.asarray(i, dtype=i.dtype if str(i.dtype).endswith("64") else "int32")
        i = xp.where((i >= 0) & (i < n), i, xp.full((), n, dtype=i.dtype))  # behind the end
        if self.reduce or i.shape[axis] == 1:
            return joined_at(xp, MONOIDS.get(self.reduce, "set"), x, i, v, axis)
        column = tuple(-1 if k == axis else 1 for k in range(rank))
        order = xp.reshape(xp.arange(i.shape[axis], dtype="int32"), column)
        none = xp.full(x.shape, -1, dtype="int32")
        last = joined_at(xp, "maximum", none, i, xp.broadcast_to(order, i.shape), axis)
        found = xp.take_along_axis(v, xp.maximum(last, xp.zeros_like(last)), axis=axis)
        return xp.where(last >= 0, found, x)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, i: Tensor, v: Tensor) -> Cotangents:
        n = x.shape[self.axis]
        end = n if isinstance(n, int) else i.apply(Value(expr=n, dtype=i.dtype))
        heard, near = (i >= 0) & (i < end), nearest(i, n)
        if self.reduce == "add":
            return g, None, select(heard, along(g, near, self.axis))[0]
        if self.reduce:  # equals share it, as in torch
            mine, here = x == y, heard & (along(y, near, self.axis) == v)
            one, ones = mine.cast(g.type.dtype), here.cast(g.type.dtype)
            g = g / one.apply(Scatter(axis=self.axis, reduce="add"), one, i, ones)
            return select(mine, g)[0], None, select(here, along(g, near, self.axis))[0]
        order = positions(i, self.axis)
        none = x.cast("i32") * 0 - 1  # made of x: where rows end, it ends as they do
        last = order.apply(self, none, i, order)
        heard = heard & (along(last, near, self.axis) == order)
        return select(last < 0, g)[0], None, select(heard, along(g, near, self.axis))[0]


def joined_at(xp: ArrayNamespace, join: str, x: Array, i: Array, v: Array, axis: int) -> Array:
    """`x` where each of `v` is joined to what lies at its place along an axis.

    join: "add", "minimum", "maximum", or "set", of places that all differ. What has the place
    behind the end is left out.
    """
    own = getattr(xp, "joined_at", scattered)
    return own(join, x, i, v, axis)


def scattered(join: str, x: np.ndarray, i: np.ndarray, v: np.ndarray, axis: int) -> np.ndarray:
    """`joined_at` of NumPy's arrays."""
    at: list[Any] = list(np.indices(i.shape, sparse=True))
    at[axis] = i
    front = (*(slice(None),) * axis, slice(x.shape[axis]))
    y = np.empty([n + int(k == axis) for k, n in enumerate(x.shape)], x.dtype)
    y[front] = x
    if join == "set":
        y[tuple(at)] = v
    else:
        getattr(np, join).at(y, tuple(at), v)
    return y[front]
