"""A namespace of the Array API functions that ops use, for arrays without numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from recurra.codegen.loop_segments import sample_steps
from recurra.codegen.widened_product import in_parts
from recurra.memory_model.arrays import (
    ArrayView,
    Shape,
    allocated,
    bool_dtype,
    broadcast_shape,
    elementwise,
    laid_out,
    slowest_first,
    steps,
)
from recurra.memory_model.peak_meter import Meter

State = TypeVar("State")
Operand = ArrayView | np.ndarray | np.generic | float
"""An array without numbers, or one of the caller"""


class AllocatingNamespace:
    """A namespace whose functions allocate as NumPy's do."""

    rounds = 2  # of a draw: later rounds allocate as the first two do

    def __init__(self, meter: Meter):
        self.meter = meter

    def new(
        self, shape: Sequence[int], dtype: DTypeLike, like: Sequence[ArrayView] = ()
    ) -> ArrayView:
        return allocated(self.meter, shape, dtype, like)

    def repeated(self, times: int, body: Callable[[int, State], State], state: State) -> State:
        for k in sample_steps(0, times):
            state = body(k, state)
        return state

    # ---- elementwise

    def minimum(self, *xs: object) -> ArrayView:
        return elementwise(self.meter, xs, np.result_type)

    maximum = bitwise_right_shift = clip = minimum
    exp = log = sqrt = tanh = sin = cos = floor = round = sign = abs = minimum

    def logical_and(self, *xs: object) -> ArrayView:
        return elementwise(self.meter, xs, bool_dtype)

    logical_or = logical_not = logical_and

    def where(self, condition: Operand, this: Operand, that: Operand) -> ArrayView:
        arrays = [x for x in (condition, this, that) if isinstance(x, ArrayView)]
        dtypes = [x.dtype if isinstance(x, ArrayView) else x for x in (this, that)]
        return self.new(broadcast_shape(arrays), np.result_type(*dtypes), arrays)

    # ---- creation

    def full(self, shape: int | Shape, value: object, dtype: DTypeLike | None = None) -> ArrayView:
        return self.new(shape if isinstance(shape, tuple) else (shape,), dtype or "float64")

    def zeros(self, shape: int | Shape, dtype: DTypeLike | None = None) -> ArrayView:
        return self.full(shape, 0, dtype)

    def zeros_like(self, array: ArrayView) -> ArrayView:
        return self.new(array.shape, array.dtype, [array])

    def arange(self, count: int, dtype: DTypeLike | None = None) -> ArrayView:
        return self.new((count,), dtype or "int64")

    def asarray(self, array: Operand, dtype: DTypeLike | None = None) -> ArrayView:
        """Convert an array; one of the same type is itself, and the caller's are not counted."""
        if isinstance(array, ArrayView):
            if dtype is None or array.dtype == np.dtype(dtype):
                return array
            return self.new(array.shape, dtype, [array])
        plain = np.asarray(array)
        dtype = np.dtype(dtype or plain.dtype)
        if plain.dtype != dtype or not isinstance(array, np.ndarray):
            return self.new(plain.shape, dtype)
        return ArrayView(self.meter, None, plain, plain.shape)

    # ---- views

    def permute_dims(self, array: ArrayView, order: Sequence[int]) -> ArrayView:
        return array.view(array.layout.transpose(order), tuple(array.shape[k] for k in order))

    def expand_dims(self, array: ArrayView, axis: int) -> ArrayView:
        at = axis % (array.ndim + 1)
        return array.view(
            np.expand_dims(array.layout, axis), (*array.shape[:at], 1, *array.shape[at:])
        )

    def broadcast_to(self, array: Operand, shape: Shape) -> ArrayView:
        array = self.asarray(array)
        return array.view(np.broadcast_to(array.layout, tuple(map(int, shape))), tuple(shape))

    def flip(self, array: ArrayView, axis: int) -> ArrayView:
        return array.view(np.flip(array.layout, axis), array.shape)

    def reshape(self, array: Operand, shape: int | Shape) -> ArrayView:
        """A view if the strides allow it, else a copy."""
        array = self.asarray(array)
        shape = _without_minus_one(array, shape if isinstance(shape, tuple) else (shape,))
        try:
            return array.view(np.reshape(array.layout, tuple(map(int, shape)), copy=False), shape)
        except ValueError:
            return self.new(shape, array.dtype)

    # ---- along axes

    def sum(
        self,
        array: ArrayView,
        axis: int | Shape | None = None,
        dtype: DTypeLike | None = None,
        keepdims: bool = False,
    ) -> ArrayView:
        axes = range(array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        reduced = {a % array.ndim for a in axes}
        if keepdims:
            return self.new(_with(array, dict.fromkeys(reduced, 1)), dtype or array.dtype, [array])
        rest = [k for k in range(array.ndim) if k not in reduced]
        axis_order = slowest_first(array.ndim, [steps(array, array.ndim)])
        order = [rest.index(k) for k in axis_order if k in rest]
        return laid_out(
            self.meter, [array.shape[k] for k in rest], np.dtype(dtype or array.dtype), order
        )

    max = min = prod = sum

    def any(self, array: ArrayView, axis: int | Shape | None = None) -> ArrayView:
        return self.sum(array, axis, bool)

    all = any

    def argmax(self, array: ArrayView, axis: int) -> ArrayView:
        return self.sum(array, axis, "int64")

    def argsort(self, array: ArrayView, axis: int, stable: bool = True) -> ArrayView:
        return self.new(array.shape, "int64")

    def cumsum(self, array: ArrayView, axis: int, dtype: DTypeLike | None = None) -> ArrayView:
        return self.new(array.shape, dtype or array.dtype, [array])

    cumprod = cumsum

    def sort(self, array: ArrayView, axis: int) -> ArrayView:
        return self.new(array.shape, array.dtype)

    def cummax(self, array: ArrayView, axis: int) -> ArrayView:
        return self.new(array.shape, array.dtype, [array])

    def topk(self, array: ArrayView, size: int, axis: int) -> ArrayView:
        return self.new([size if k == axis else n for k, n in enumerate(array.shape)], "int32")

    def joined_at(
        self, join: str, array: ArrayView, indices: ArrayView, values: ArrayView, axis: int
    ) -> ArrayView:
        longer = self.new(_with(array, {axis: array.shape[axis] + 1}), array.dtype)
        return longer[(*(slice(None),) * axis, slice(0, array.shape[axis]))]

    def concat(self, xs: Sequence[ArrayView], axis: int) -> ArrayView:
        axis %= xs[0].ndim
        total = sum((x.shape[axis] for x in xs[1:]), xs[0].shape[axis])
        return self.new(_with(xs[0], {axis: total}), np.result_type(*(x.dtype for x in xs)))

    def stack(self, xs: Sequence[ArrayView], axis: int) -> ArrayView:
        shape = (*xs[0].shape[:axis], len(xs), *xs[0].shape[axis:])
        return self.new(shape, np.result_type(*(x.dtype for x in xs)))

    def pad(
        self, array: ArrayView, widths: Sequence[tuple[int, int]], constant_values: object = 0
    ) -> ArrayView:
        ends = zip(array.shape, widths, strict=True)
        return self.new([n + a + b for n, (a, b) in ends], array.dtype)

    # ---- by position

    def take(self, array: Operand, at: Operand, axis: int, mode: str = "raise") -> ArrayView:
        """Gather; positions that are not int64, and arrays that are not row-major, are copied."""
        array, at = self.asarray(array), self.asarray(at)
        wide = self.new(at.shape, "int64") if at.dtype != np.dtype("int64") else at
        rows = array if array.layout.flags.carray else self.new(array.shape, array.dtype)
        shape = (*array.shape[:axis], *at.shape, *array.shape[axis % array.ndim + 1 :])
        result = self.new(shape, array.dtype)
        del wide, rows  # they are alive while the result is allocated
        return result

    def take_along_axis(self, array: ArrayView, at: ArrayView, axis: int) -> ArrayView:
        wide = self.new(at.shape, "int64")
        sizes = [b if a == 1 else a for a, b in zip(array.shape, at.shape, strict=True)]
        sizes[axis] = at.shape[axis]
        result = self.new(sizes, array.dtype)
        del wide
        return result

    # ---- products

    def widened(self, labels: str, dtype: str, *xs: ArrayView) -> ArrayView:
        """A product in a wider type; its widened parts, and their product, are alive too."""
        return in_parts(labels, dtype, xs, lambda x: self.asarray(x, dtype), self.einsum, self.new)

    def einsum(self, labels: str, *xs: ArrayView) -> ArrayView:
        ins, out = labels.split("->")
        sizes: dict[str, int] = {}
        for own, x in zip(ins.split(","), xs, strict=True):
            sizes |= {c: n for c, n in zip(own, x.shape, strict=True) if n != 1 or c not in sizes}
        axes = out + "".join(sorted(set(sizes) - set(out)))
        strides = [_strides(x, own, axes) for own, x in zip(ins.split(","), xs, strict=True)]
        order = [k for k in slowest_first(len(axes), strides) if k < len(out)]
        return laid_out(self.meter, [sizes[c] for c in out], xs[0].dtype, order)


def _strides(array: ArrayView, labels: str, axes: str) -> list[int]:
    """The strides of an operand along labeled axes; 0 along those that it lacks."""
    by_label = dict(zip(labels, steps(array, array.ndim), strict=True))
    return [by_label.get(c, 0) for c in axes]


def _without_minus_one(array: ArrayView, shape: Shape) -> Shape:
    if -1 not in shape:
        return tuple(shape)
    rest = prod(n for n in shape if n != -1)
    total: int = prod(array.shape, start=1)
    return tuple(total // rest if n == -1 else n for n in shape)


def _with(array: ArrayView, sizes: dict[int, int]) -> Shape:
    return tuple(sizes.get(k, n) for k, n in enumerate(array.shape))
