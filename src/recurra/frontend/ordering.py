"""Methods of tensors along one axis: sorting, scans, gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

import numpy as np

from recurra.errors import ShapeError
from recurra.frontend.axes import Axes, axis_of
from recurra.frontend.dtype_objects import Dtype, dtype_name
from recurra.frontend.index_arguments import Size, unwrap, wrap
from recurra.frontend.operator_table import operator
from recurra.frontend.reshaping import broadcast_to, cut, flip, reshape
from recurra.frontend.tensor_base import Read, Tensor
from recurra.frontend.tensor_conversion import as_float, convert, positions, promote
from recurra.ir.op import LETTERS
from recurra.ir.types import accumulator
from recurra.ops import indexing, movement, ordering, scan
from recurra.ops.softmax import LogSoftmax, Softmax


@operator("x.sort(axis=-1)", "np.sort", "torch.sort", positions="x.argsort")
def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Sort in ascending order, NaN last; torch's also returns `argsort`."""
    axis = axis_of(x, axis)
    if descending:
        return flip(sort(flip(x, axis), axis), axis)
    return x.apply(ordering.Sort(axis=axis), x)


@operator("x.argsort(axis=-1)", "np.argsort", "torch.argsort")
def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The positions that sort the elements; the sort is stable."""
    axis = axis_of(x, axis)
    if descending:  # reversed twice, which keeps it stable
        last = convert(x.kind, wrap(x.shape[axis] - 1))
        return last - flip(argsort(flip(x, axis), axis), axis)
    return x.apply(indexing.ArgSort(axis=axis), x)


class TopElements(NamedTuple, Generic[Tensor]):
    """The top elements, and their positions along the axis."""

    values: Tensor
    indices: Tensor


@operator("x.topk(k=2, axis=-1)", "", "torch.topk")
def topk(x: Tensor, k: Size, axis: int = -1, largest: bool = True) -> TopElements[Tensor]:
    """The k largest or smallest elements, sorted, and their positions; ties go to the first."""
    axis = axis_of(x, axis)
    if largest:
        places = x.apply(ordering.TopK(axis=axis, size=unwrap(k)), x)
    else:
        places = cut(argsort(x, axis), 0, k, axis)
    return TopElements(ordering.along(x, places, axis), places)


@operator("x.cumsum(axis=0)", "np.cumsum", "torch.cumsum")
def cumsum(x: Tensor, axis: int = 0) -> Tensor:
    """The running sums along an axis, of the type that `sum` has."""
    x = x.cast(accumulator(x.dtype))
    return x.apply(scan.CumSum(axis=axis_of(x, axis)), x)


@operator("x.cumprod(axis=0)", "np.cumprod", "torch.cumprod")
def cumprod(x: Tensor, axis: int = 0) -> Tensor:
    """The running products along an axis, of the type that `sum` has."""
    x = x.cast(accumulator(x.dtype))
    return x.apply(scan.CumProd(axis=axis_of(x, axis)), x)


@operator("x.cummax(axis=0)", "np.maximum.accumulate", "torch.cummax", positions="")
def cummax(x: Tensor, axis: int = 0) -> Tensor:
    """The running maximum along an axis; torch's also returns positions."""
    y = x.cast("u8") if x.dtype == "bool" else x
    return y.apply(ordering.CumMax(axis=axis_of(x, axis)), y).cast(x.dtype)


@operator("x.discounted_sum(gamma=0.99, axis=0)")
def discounted_sum(x: Tensor, gamma: float, axis: int = 0) -> Tensor:
    """Σₖ γᵏ x[k] along an axis."""
    argument: Any = gamma
    if not isinstance(argument, int | float | np.integer | np.floating):
        raise ShapeError.at_user_line(
            f"discounted_sum discounts by one number, not by {gamma!r}",
            facts="element k counts γᵏ; what differs from step to step, and is 0 where an episode "
            "ends, is a recurrence",
            hint="write g = rc.like(x.type, domain=(t,)); g[T - 1] = x[T - 1]; "
            "g[t] = x + 0.99 * rc.where(y > 1.0, 0.0, g[t + 1])",
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
    """The elements at positions given by data; the axes of `indices` replace the axis.

    Positions outside the axis are clamped to it: -1 takes the first element.
    """
    axis, indices = axis_of(x, axis), convert(x.kind, indices)
    full = LETTERS[: len(x.shape)]
    new = LETTERS[len(full) : len(full) + len(indices.shape)]
    labels = f"{full},{new}->{full[:axis]}{new}{full[axis + 1 :]}"
    return x.apply(indexing.Take(labels=labels, axis=full[axis]), x, indices)


@operator("x.gather(axis=0, index=i)", "np.take_along_axis", "torch.gather")
def gather(x: Tensor, axis: int, index: object) -> Tensor:
    """y[.., k, ..] = x[.., i[.., k, ..], ..] along an axis; positions are clamped, as in `take`."""
    axis, i = _axis_and_places("gather(axis, i)", x, axis, index)
    return ordering.along(x, i, axis)


@operator("x.scatter(axis=0, index=i, value=y)", "np.put_along_axis", "torch.scatter")
def scatter(
    x: Tensor, axis: int, index: object, value: object, reduce: ordering.Reduce = ""
) -> Tensor:
    """Write v[.., k, ..] to x[.., i[.., k, ..], ..] along an axis, or reduce: "add", "min", "max".

    If several values have one position, the last is kept; with `reduce`, x is combined with all of
    them, and equal extrema share the gradient, as in torch. A single position, or one row of them,
    applies to all other axes: x.scatter(0, k, row) replaces row k of a matrix. Positions outside
    the axis are ignored.
    """
    x, v = promote(x.kind, x, value)
    one = convert(x.kind, index)
    argument: object = axis
    if not isinstance(argument, Read) and len(one.shape) < min(2, len(x.shape)):
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
    """Broadcast a row of positions along an axis to all other axes."""
    row = reshape(places, tuple(n if k == axis else 1 for k, n in enumerate(shape)))
    return broadcast_to(row, tuple(shape))


def _axis_and_places(
    call: str, tensor: Tensor, axis: int | Read, index: object
) -> tuple[int, Tensor]:
    """Return the axis and the positions along it; raise ShapeError if their shapes do not fit."""
    if isinstance(axis, Read):
        raise ShapeError.at_user_line(
            "the axis comes first, then the places",
            facts=f"the tensor is {tensor!r}, the first argument {axis!r}",
            hint=f"write x.{call}, as in torch",
        )
    axis, i = axis_of(tensor, axis), convert(tensor.kind, index)
    sizes = [[n for k, n in enumerate(y.shape) if k != axis] for y in (tensor, i)]
    if len(tensor.shape) != len(i.shape) or sizes[0] != sizes[1]:
        raise ShapeError.at_user_line(
            f"the places {i.type} do not fit {tensor.type}",
            facts=f"off axis {axis} each element has places of its own, so the sizes are the same",
            hint="for the same places in all rows write x.take(i, axis)"
            if call.startswith("gather")
            else f"write x.{call} of an i with the other axes of x",
        )
    return axis, i


@operator("x.roll(shift=1, axis=0)", "np.roll", "torch.roll")
def roll(x: Tensor, shift: Size | Read | Sequence[Size | Read], axis: Axes = None) -> Tensor:
    """y[k] = x[k - shift], cyclic along an axis; without an axis, of the flattened tensor."""
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
        return take(
            tensor, (positions(tensor.kind, n) - shift) % convert(tensor.kind, wrap(n)), axis
        )
    k = -shift % n if n else 0
    return (
        tensor.apply(movement.Concat(axis=axis), cut(tensor, k, n, axis), cut(tensor, 0, k, axis))
        if k
        else tensor
    )


@operator("i.one_hot(size=3)", "", "torch.nn.functional.one_hot")
def one_hot(x: Tensor, size: Size, dtype: str | Dtype = "f32") -> Tensor:
    """The one-hot vector with 1 at position i of a new last axis; zeros if i is outside of it."""
    return x.apply(indexing.OneHot(size=unwrap(size), axis=len(x.shape), to=dtype_name(dtype)), x)
