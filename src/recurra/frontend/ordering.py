"""Methods of tensors along one axis: order, running results, elements by their positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

import numpy as np

from recurra.errors import ShapeError, here
from recurra.frontend.axes import Axes, axis_of
from recurra.frontend.bare_index import Size, unwrap, wrap
from recurra.frontend.construct import as_float, convert, counted, promote
from recurra.frontend.dtypes import Dtype, dtype_name
from recurra.frontend.layouts import broadcast_to, cut, flip, reshape
from recurra.frontend.operators import operator
from recurra.frontend.read import Read, Tensor
from recurra.ir.op import LETTERS
from recurra.ir.types import accumulator
from recurra.ops import indexing, movement, ordering, scan
from recurra.ops.softmax import LogSoftmax, Softmax


@operator("x.sort(axis=-1)", "np.sort", "torch.sort", positions="x.argsort")
def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The elements in ascending order, NaN last; torch's also gives `argsort`."""
    axis = axis_of(x, axis)
    if descending:
        return flip(sort(flip(x, axis), axis), axis)
    return x.apply(ordering.Sort(axis=axis), x)


@operator("x.argsort(axis=-1)", "np.argsort", "torch.argsort")
def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Positions in ascending order; of equals the first comes first."""
    axis = axis_of(x, axis)
    if descending:  # from the end, so that of equals the first comes first
        last = convert(x.kind, wrap(x.shape[axis] - 1))
        return last - flip(argsort(flip(x, axis), axis), axis)
    return x.apply(indexing.ArgSort(axis=axis), x)


class TopElements(NamedTuple, Generic[Tensor]):
    """Elements, and their positions along the axis."""

    values: Tensor
    indices: Tensor


@operator("x.topk(k=2, axis=-1)", "", "torch.topk")
def topk(x: Tensor, k: Size, axis: int = -1, largest: bool = True) -> TopElements[Tensor]:
    """The k largest, or smallest, in order, and their positions; of equals the first."""
    axis = axis_of(x, axis)
    if largest:
        places = x.apply(ordering.TopK(axis=axis, size=unwrap(k)), x)
    else:
        places = cut(argsort(x, axis), 0, k, axis)
    return TopElements(ordering.along(x, places, axis), places)


@operator("x.cumsum(axis=0)", "np.cumsum", "torch.cumsum")
def cumsum(x: Tensor, axis: int = 0) -> Tensor:
    """Running sums along an axis, of the type that `sum` has."""
    x = x.cast(accumulator(x.dtype))
    return x.apply(scan.CumSum(axis=axis_of(x, axis)), x)


@operator("x.cumprod(axis=0)", "np.cumprod", "torch.cumprod")
def cumprod(x: Tensor, axis: int = 0) -> Tensor:
    """Running products along an axis, of the type that `sum` has."""
    x = x.cast(accumulator(x.dtype))
    return x.apply(scan.CumProd(axis=axis_of(x, axis)), x)


@operator("x.cummax(axis=0)", "np.maximum.accumulate", "torch.cummax", positions="")
def cummax(x: Tensor, axis: int = 0) -> Tensor:
    """The largest so far along an axis; torch's also gives where it was found."""
    y = x.cast("u8") if x.dtype == "bool" else x
    return y.apply(ordering.CumMax(axis=axis_of(x, axis)), y).cast(x.dtype)


@operator("x.discounted_sum(gamma=0.99, axis=0)")
def discounted_sum(x: Tensor, gamma: float, axis: int = 0) -> Tensor:
    """Σₖ γᵏ x[k] along an axis."""
    given: Any = gamma
    if not isinstance(given, int | float | np.integer | np.floating):
        raise ShapeError(
            f"discounted_sum discounts by one number, not by {gamma!r}",
            facts="element k counts γᵏ; what differs from step to step, and is 0 where an episode "
            "ends, is a recurrence",
            hint="write g = rc.like(x.type, domain=(t,)); g[T - 1] = x[T - 1]; "
            "g[t] = x + 0.99 * rc.where(y > 1.0, 0.0, g[t + 1])",
            loc=here(),
        )
    x = as_float(x)
    return x.apply(scan.DiscountedSum(gamma=float(gamma), axis=axis_of(x, axis)), x)


@operator("x.softmax(axis=-1)", "scipy.special.softmax", "torch.softmax")
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """eˣ / Σ eˣ along an axis."""
    x = as_float(x)
    return x.apply(Softmax(axis=axis_of(x, axis)), x)


@operator("x.log_softmax(axis=-1)", "scipy.special.log_softmax", "torch.log_softmax")
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """x - ln Σ eˣ along an axis."""
    x = as_float(x)
    return x.apply(LogSoftmax(axis=axis_of(x, axis)), x)


@operator("x.take(i, axis=0)", "np.take", "torch.index_select")
def take(x: Tensor, indices: object, axis: int = 0) -> Tensor:
    """Elements along an axis by data; the axes of `indices` take its place.

    A position that is not on the axis takes the nearest element: -1 the first one.
    """
    axis, indices = axis_of(x, axis), convert(x.kind, indices)
    full = LETTERS[: len(x.shape)]
    new = LETTERS[len(full) : len(full) + len(indices.shape)]
    labels = f"{full},{new}->{full[:axis]}{new}{full[axis + 1 :]}"
    return x.apply(indexing.Take(labels=labels, axis=full[axis]), x, indices)


@operator("x.gather(axis=0, index=i)", "np.take_along_axis", "torch.gather")
def gather(x: Tensor, axis: int, index: object) -> Tensor:
    """y[.., k, ..] = x[.., i[.., k, ..], ..] along an axis; off the axis the nearest, as `take`."""
    axis, i = _axis_and_places("gather(axis, i)", x, axis, index)
    return ordering.along(x, i, axis)


@operator("x.scatter(axis=0, index=i, value=y)", "np.put_along_axis", "torch.scatter")
def scatter(
    x: Tensor, axis: int, index: object, value: object, reduce: ordering.Reduce = ""
) -> Tensor:
    """x, but v[.., k, ..] at i[.., k, ..] along an axis; by reduce="add", "min" or "max" all.

    Of several at one place it is the last; with `reduce` x is joined to all of them, and of equals
    each has its share of the gradient, as in torch.
    One place, or a row of them, is the same for all other axes: x.scatter(0, k, row) replaces row k
    of a matrix. What is off the axis is left out.
    """
    x, v = promote(x.kind, x, value)
    one = convert(x.kind, index)
    given: object = axis
    if not isinstance(given, Read) and len(one.shape) < min(2, len(x.shape)):
        k = axis_of(x, axis)
        count = one.shape[0] if one.shape else 1
        index = _everywhere(one, k, [count if j == k else n for j, n in enumerate(x.shape)])
        if v.shape and not one.shape and len(v.shape) < len(x.shape):
            v = reshape(v, (*v.shape[:k], 1, *v.shape[k:]))
        v = broadcast_to(v, index.shape) if v.shape else v
    axis, i = _axis_and_places("scatter(axis, i, v)", x, axis, index)
    v = v if v.shape else broadcast_to(v, i.shape)
    return x.apply(ordering.Scatter(axis=axis, reduce=reduce), x, i, v)


def _everywhere(places: Tensor, axis: int, shape: Sequence[Size]) -> Tensor:
    """A row of places along an axis, the same for all others."""
    row = reshape(places, tuple(n if k == axis else 1 for k, n in enumerate(shape)))
    return broadcast_to(row, tuple(shape))


def _axis_and_places(
    call: str, tensor: Tensor, axis: int | Read, index: object
) -> tuple[int, Tensor]:
    """Check an axis and the places of elements along it; all other axes are those of the tensor."""
    if isinstance(axis, Read):
        raise ShapeError(
            "the axis comes first, then the places",
            facts=f"the tensor is {tensor!r}, the first argument {axis!r}",
            hint=f"write x.{call}, as in torch",
            loc=here(),
        )
    axis, i = axis_of(tensor, axis), convert(tensor.kind, index)
    sizes = [[n for k, n in enumerate(y.shape) if k != axis] for y in (tensor, i)]
    if len(tensor.shape) != len(i.shape) or sizes[0] != sizes[1]:
        raise ShapeError(
            f"the places {i.type} do not fit {tensor.type}",
            facts=f"off axis {axis} each element has places of its own, so the sizes are the same",
            hint="for the same places in all rows write x.take(i, axis)"
            if call.startswith("gather")
            else f"write x.{call} of an i with the other axes of x",
            loc=here(),
        )
    return axis, i


@operator("x.roll(shift=1, axis=0)", "np.roll", "torch.roll")
def roll(x: Tensor, shift: Size | Read | Sequence[Size | Read], axis: Axes = None) -> Tensor:
    """y[k] = x[k - shift] round the axis; without an axis, of the elements in one row."""
    if axis is None and len(x.shape) != 1:
        return reshape(roll(reshape(x, -1), shift, 0), x.shape)
    axes = (0,) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    for a, s in zip(axes, shifts, strict=True):
        x = _rolled(x, s, axis_of(x, a))
    return x


def _rolled(tensor: Tensor, shift: object, axis: int) -> Tensor:
    n = tensor.shape[axis]
    if type(shift) is not int or not isinstance(n, int):
        return take(tensor, (counted(tensor.kind, n) - shift) % convert(tensor.kind, wrap(n)), axis)
    k = -shift % n if n else 0
    return (
        tensor.apply(movement.Concat(axis=axis), cut(tensor, k, n, axis), cut(tensor, 0, k, axis))
        if k
        else tensor
    )


@operator("i.one_hot(size=3)", "", "torch.nn.functional.one_hot")
def one_hot(x: Tensor, size: Size, dtype: str | Dtype = "f32") -> Tensor:
    """1 at position i of a new last axis, else 0; all zeros where i is not on it."""
    return x.apply(indexing.OneHot(size=unwrap(size), axis=len(x.shape), to=dtype_name(dtype)), x)
