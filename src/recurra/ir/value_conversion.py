"""Conversion of values from outside to the element types of a program, refusing lossy ones.

Inputs, constants, results of host calls and checkpoints all pass through `fitted`. Floats may be
rounded to a narrower float; nothing else may change: no fraction is lost, nothing wraps or
overflows.
"""

from __future__ import annotations

from functools import cache
from numbers import Integral, Real
from typing import Any, NoReturn, cast

import ml_dtypes
import numpy as np

from recurra.errors import Loc, ShapeError, here
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, is_float

_FLOATS = {k: ml_dtypes.finfo(NUMPY_NAME[k]) for k in ("f64", "f32", "f16", "bf16")}
_MANTISSA = {k: x.nmant + 1 for k, x in _FLOATS.items()}  # integers of this many bits are exact
_LARGEST = {k: float(x.max) for k, x in _FLOATS.items()}


def fitted(data: object, dtype: str, what: str, *, hint: str = "", loc: Loc | None = None) -> Any:
    """Convert `data` to a NumPy array of the type `dtype`; return it as it is if it is one already.

    Raises ShapeError about `what` with the first value that the type cannot hold, and its place.
    Values are inspected only if the types do not guarantee that all of them fit.
    """
    to = _numpy(dtype)
    if type(data) is np.ndarray:
        if data.dtype == to:
            return data
        if data.dtype == np.float64 and np.vdot(data, data) <= _LARGEST.get(dtype, -1.0):
            return data.astype(to)  # none is larger than the root of the sum of squares
    try:
        array = array_of(data, what, loc)
    except (TypeError, ValueError) as error:
        _refuse(f"{what} cannot be read as an array of {dtype}", str(error), hint, loc)
    if array.dtype == to:
        return array
    if not _is_safe(array.dtype, to) and not _is_small(array, dtype):
        _expect_numbers(array, dtype, what, hint, loc)
        misfits = _misfits(array, dtype)
        if misfits is not None and misfits.any():
            at = _first(misfits)
            facts = f"{_place(at)}it is {array[at]}; {_range(dtype, array)}"
            _refuse(f"{what} has a value that {dtype} cannot hold", facts, hint, loc)
    return array.astype(to)


def detached(data: object) -> object:
    """Detach a tensor of torch from its gradient and resolve lazy negation and conjugation."""
    if not hasattr(data, "detach"):
        return data
    tensor: Any = data
    return tensor.detach().resolve_conj().resolve_neg()


def array_of(data: Any, what: str = "the array", loc: Loc | None = None) -> np.ndarray:
    """Convert arrays of NumPy, torch or JAX, or nested lists, to a NumPy array, bit by bit.

    Raises ShapeError about `what` with the first place that is masked, or where the lengths of
    lists differ.
    """
    is_list = isinstance(data, (list, tuple))
    for k, x in enumerate(data) if is_list else [(None, data)]:
        if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
            at = _first(np.ma.getmaskarray(x))
            facts = f"{_place(at if k is None else (k, *at))}it is masked; no tensor is"
            _refuse(f"{what} has a masked value", facts, "fill it: x.filled(0.0)", loc)
    if not is_list and hasattr(data, "detach"):  # a tensor of torch, which NumPy reads on the host
        data = cast(Any, detached(data.cpu()))
        if str(data.dtype) == "torch.bfloat16":  # unknown to NumPy; f32 holds all of its values
            return data.float().numpy().astype(NUMPY_NAME["bf16"])
    exporter: Any = data if hasattr(data, "__dlpack__") and not hasattr(data, "__array__") else None
    try:
        found = np.asarray(data) if exporter is None else np.from_dlpack(exporter)
    except ValueError:
        shape_of(data, what)
        raise
    return _as_floats(found) if found.ndim and found.dtype.kind == "O" else found


def _as_floats(objects: np.ndarray) -> np.ndarray:
    """Convert an object array of real numbers to f64 if any of them has a fraction."""
    if not all(isinstance(x, Real) for x in objects.flat):
        return objects
    whole = [x for x in objects.flat if isinstance(x, Integral)]
    kept = len(whole) == objects.size or any(int(float(x)) != x for x in whole)
    return objects if kept else objects.astype(np.float64)


def shape_of(data: Any, what: str, at: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The shape of nested lists; raises ShapeError if the items of one list differ in shape."""
    if not isinstance(data, (list, tuple)):
        return np.shape(data)
    parts = [shape_of(x, what, (*at, k)) for k, x in enumerate(data)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for k, shape in enumerate(parts):
        if shape != parts[0]:
            facts = f"{_item(*at, k)} has the shape {shape}, {_item(*at, 0)} has {parts[0]}"
            _refuse(f"{what} is ragged", facts, "fill up the short ones: x + [0.0]", here())
    return (len(parts), *(parts[0] if parts else ()))


def _item(*at: int) -> str:
    return "x" + "".join(f"[{k}]" for k in at)


def _refuse(what: str, facts: str, hint: str, loc: Loc | None) -> NoReturn:
    raise ShapeError(what, facts=facts, hint=hint, loc=loc) from None


def _first(flags: np.ndarray) -> tuple[int, ...]:
    """The position of the first true flag."""
    return tuple(int(k) for k in np.unravel_index(int(np.argmax(flags)), flags.shape))


@cache
def _numpy(dtype: str) -> np.dtype:
    return np.dtype(NUMPY_NAME[dtype])


def _is_small(array: np.ndarray, dtype: str) -> bool:
    """Are these floats that all lie within the range of a float type?"""
    if array.dtype.kind != "f" or not is_float(dtype):
        return False
    return bool(np.abs(array).max(initial=0) <= _LARGEST[dtype])  # false with NaN: inspect them


@cache
def _is_safe(dtype: np.dtype, to: np.dtype) -> bool:
    """Is every value of `dtype` also one of `to`, or rounded to one by a float type?"""
    name = SHORT_NAME[to.name]
    if dtype.kind == "b":
        return True
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if is_float(name):
            return int(info.max) <= 2 ** _MANTISSA[name]
        return to.kind in "iu" and bool(np.can_cast(dtype, to))
    known = SHORT_NAME.get(dtype.name, "")
    return is_float(known) and is_float(name) and _LARGEST[known] <= _LARGEST[name]


def _expect_numbers(array: Any, dtype: str, what: str, hint: str, loc: Loc | None) -> None:
    """Raise ShapeError for values that are not real numbers: text, dates, complex, objects."""
    is_whole = array.dtype.kind == "O" and all(type(x) is int for x in array.flat)  # over 64 bits
    known = array.dtype.kind in "biuf" or array.dtype.name in SHORT_NAME
    if known or is_whole or not array.size:
        return
    has_two_parts = array.dtype.kind == "c" and array.imag.any()
    at = _first(array.imag != 0 if has_two_parts else np.ones(array.shape, bool))
    facts = f"{_place(at)}it is {array[at]!r} of {array.dtype}; {dtype} holds real numbers only"
    _refuse(f"{what} cannot be read as an array of {dtype}", facts, hint, loc)


def _place(at: tuple[int, ...]) -> str:
    return f"at [{', '.join(map(str, at))}] " if at else ""


def _misfits(array: np.ndarray, dtype: str) -> np.ndarray | None:
    """The mask of the values that do not fit, or None if all do."""
    if not array.size:
        return None
    low, high = _exact(dtype)
    if array.dtype.kind in "iuO":
        if int(array.min()) >= low and int(array.max()) <= high:
            return None
        if not is_float(dtype):
            return (array < low) | (array > high)
        even = np.where(array == 0, 1, array & -array)  # the largest power of 2 that divides it
        odd = array // even
        return (odd < low) | (odd > high) | (abs(array) > _LARGEST[dtype])
    if not is_float(dtype):
        wide = array.astype(np.float64)  # which represents one beyond either end of every type
        inside = (wide >= float(low)) & (wide < float(high) + 1)
        return ~(inside & (wide == np.floor(wide)))
    with np.errstate(over="ignore"):
        rounded = array.astype(NUMPY_NAME[dtype])
    lost = np.isinf(rounded)
    return lost & np.isfinite(array) if lost.any() else None


def _exact(dtype: str) -> tuple[int, int]:
    """The ends of the range of integers that a type represents without gaps."""
    if is_float(dtype):
        return -(2 ** _MANTISSA[dtype]), 2 ** _MANTISSA[dtype]
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(NUMPY_NAME[dtype])
    return int(info.min), int(info.max)


def _range(dtype: str, array: np.ndarray) -> str:
    """Describe, for an error, the range of a type for values such as those of the array."""
    low, high = _exact(dtype)
    if not is_float(dtype):
        return f"{dtype} holds whole numbers from {low} to {high}"
    if array.dtype.kind in "iuO":
        return f"of whole numbers {dtype} holds all from {low} to {high}, and few beyond"
    return f"the largest number of {dtype} is {_LARGEST[dtype]:.8g}"
