"""Arrays without numbers: shape, strides and a metered buffer, with the operators that ops use.

NumPy itself decides what is a view and what is allocated: a layout is a real array of these strides
over one element, which is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from types import EllipsisType

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import ArrayLike, DTypeLike

from recurra.errors import PlanError
from recurra.ir.types import is_floating
from recurra.memory_model.amount import Extent, number
from recurra.memory_model.peak_meter import Label, Meter, MeteredBuffer

Shape = tuple[int, ...]
Key = int | slice | EllipsisType | None
DTypeRule = Callable[..., np.dtype]
"""(types of arrays, or numbers) → the type of a result"""
MAX_BYTES = int(np.iinfo(np.intp).max)  # of one NumPy array


class ArrayView:
    """A view of a buffer; lengths of axes may be extents. An array of the caller has no buffer."""

    __slots__ = ("buffer", "layout", "meter", "shape")

    def __init__(
        self, meter: Meter, buffer: MeteredBuffer | None, layout: np.ndarray, shape: Shape
    ):
        self.meter, self.buffer, self.layout = meter, buffer, layout
        self.shape = tuple(a if a == b else b for a, b in zip(shape, layout.shape, strict=True))

    @property
    def dtype(self) -> np.dtype:
        return self.layout.dtype

    @property
    def label(self) -> Label | None:
        return None if self.buffer is None else self.buffer.label

    @property
    def ndim(self) -> int:
        return self.layout.ndim

    def view(self, layout: np.ndarray, shape: Shape | None = None) -> ArrayView:
        """Another view of the same buffer."""
        return ArrayView(self.meter, self.buffer, layout, layout.shape if shape is None else shape)

    def __getitem__(self, key: Key | tuple[Key, ...]) -> ArrayView:
        whole = key if isinstance(key, tuple) else (key,)
        if whole and whole[0] is Ellipsis:
            whole = (*(slice(None),) * (self.ndim - len(whole) + 1), *whole[1:])
        rest = (slice(None),) * (self.ndim - len(whole))
        pairs = zip((*whole, *rest), self.shape, strict=True)
        shape = tuple(_length(k, n) for k, n in pairs if isinstance(k, slice))
        return self.view(self.layout[whole], shape)

    def __setitem__(self, key: object, value: ArrayView) -> None:
        """Do nothing: there are no numbers."""

    def copy(self) -> ArrayView:
        """A copy in a new buffer, with the same order of axes."""
        return allocated(self.meter, self.shape, self.dtype, [self])

    def __and__(self, other: object) -> ArrayView:
        return elementwise(self.meter, [self, other], np.result_type)

    __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = __and__
    __rshift__ = __rrshift__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = (
        __and__
    )
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __and__

    def __truediv__(self, other: object) -> ArrayView:
        return elementwise(self.meter, [self, other], _quotient_dtype)

    __rtruediv__ = __truediv__

    def __neg__(self) -> ArrayView:
        return elementwise(self.meter, [self], np.result_type)

    __invert__ = __abs__ = __neg__

    def __lt__(self, other: object) -> ArrayView:
        return elementwise(self.meter, [self, other], bool_dtype)

    __le__ = __gt__ = __ge__ = __lt__
    __eq__ = __ne__ = __lt__  # pyright: ignore
    __hash__ = object.__hash__


def _length(key: slice, count: int) -> int:
    """The length of a slice of an axis; an extent if its ends are."""
    if key == slice(None):
        return count
    if key.step in (None, 1) and key.start is not None and key.stop is not None and key.start >= 0:
        return key.stop - key.start
    return len(range(count)[key])


def _quotient_dtype(*dtypes: ArrayLike | DTypeLike) -> np.dtype:
    common = np.result_type(*dtypes)
    return common if is_floating(common) else np.dtype("float64")


def bool_dtype(*dtypes: object) -> np.dtype:
    return np.dtype(bool)


def allocated(
    meter: Meter,
    shape: Sequence[int],
    dtype: DTypeLike,
    like: Sequence[ArrayView] = (),
    kind: str = "made",
    name: str = "",
) -> ArrayView:
    """A new array, in row-major order, or in the order of the strides of operands `like`."""
    order = slowest_first(len(shape), [steps(x, len(shape)) for x in like])
    return laid_out(meter, shape, np.dtype(dtype), order, kind, name)


def laid_out(
    meter: Meter,
    shape: Sequence[int],
    dtype: np.dtype,
    order: Sequence[int],
    kind: str = "made",
    name: str = "",
) -> ArrayView:
    """A new array with an order of its axes, the slowest first."""
    amount = number(dtype.itemsize * prod(n for n in shape if not isinstance(n, Extent)))
    for n in shape:
        amount = amount * n.amount if isinstance(n, Extent) else amount
    strides, step = [0] * len(shape), dtype.itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= int(shape[axis])
    nbytes = dtype.itemsize * prod(map(int, shape))
    if nbytes > MAX_BYTES:
        raise PlanError(
            f"{name or 'a value'} would take {nbytes:,} bytes",
            facts=f"it is {dtype.name}[{', '.join(map(str, shape))}]; no address reaches as far",
            hint="make it smaller",
        )
    layout = as_strided(np.empty(1, dtype), tuple(map(int, shape)), strides)
    return ArrayView(
        meter, MeteredBuffer(meter, Label(name, kind, nbytes, amount)), layout, tuple(shape)
    )


def steps(array: ArrayView, rank: int) -> list[int]:
    """The strides of an operand along the axes of a result; 0 along those of length 1."""
    own = [
        abs(s) if n != 1 else 0
        for s, n in zip(array.layout.strides, array.layout.shape, strict=True)
    ]
    return [0] * (rank - array.ndim) + own


def slowest_first(rank: int, operands: Sequence[Sequence[int]]) -> list[int]:
    """Sort axes as NumPy's iterator does, by the strides of operands along each.

    It inserts axis by axis, from the last; axes on which operands disagree keep their order.
    """
    order: list[int] = []  # the fastest first
    for axis in reversed(range(rank)):
        at = len(order)
        for k in reversed(range(len(order))):
            pairs = [(x[axis], x[order[k]]) for x in operands if x[axis] and x[order[k]]]
            if any(b <= a for a, b in pairs):
                break
            at = k if pairs else at
        order.insert(at, axis)
    return order[::-1]


def elementwise(meter: Meter, operands: Sequence[object], rule: DTypeRule) -> ArrayView:
    """The result of an elementwise operator on arrays and numbers."""
    arrays = [x for x in operands if isinstance(x, ArrayView)]
    dtype = rule(*(x.dtype if isinstance(x, ArrayView) else x for x in operands))
    return allocated(meter, broadcast_shape(arrays), dtype, arrays)


def broadcast_shape(arrays: Sequence[ArrayView]) -> Shape:
    """The shape to which arrays are broadcast, by the rules of NumPy."""
    rank = max((x.ndim for x in arrays), default=0)
    shape: list[int] = []
    for k in range(-rank, 0):
        lengths = [x.shape[k] for x in arrays if x.ndim >= -k]
        shape.append(next((n for n in lengths if n != 1), 1))
    return tuple(shape)
