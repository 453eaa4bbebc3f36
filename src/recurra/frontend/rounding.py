"""Rounding to a number of decimals, which may be an index expression."""

from __future__ import annotations

import operator
from typing import Any, TypeGuard

import numpy as np

from recurra.errors import RecurraError
from recurra.frontend.index_arguments import BareIndex, is_condition, unwrap, wrap
from recurra.frontend.ordering import take
from recurra.frontend.tensor_base import Tensor
from recurra.frontend.tensor_conversion import convert, pointwise
from recurra.ir import expr as ex
from recurra.ir.expr import Expr
from recurra.ir.types import accumulator, is_float
from recurra.ops import elementwise as el

MOST_DIGITS = {
    **{"u8": 2, "i8": 2, "u32": 9, "i32": 9, "i64": 18},  # the largest power of ten in each type
    **{"bf16": 38, "f16": 4, "f32": 38, "f64": 308},
}


def rounded(x: Tensor, decimals: int | BareIndex) -> Tensor:
    """Round to this many decimals; ties go to the even digit."""
    digits = _digits(decimals)
    if isinstance(digits, int) and digits >= 0 and not is_float(x.dtype):
        return x
    return _of_float(x, digits) if is_float(x.dtype) else _of_integer(x, digits)


def _digits(decimals: Any) -> Expr | int:
    """The number of decimals; raises RecurraError unless it is an integer or index expression."""
    digits: Any = unwrap(decimals)
    try:
        return digits if _is_index(digits) else operator.index(digits)
    except TypeError:
        raise RecurraError.at_user_line(
            f"x.round({decimals!r}) does not say to how many decimals",
            facts="these are counted: a whole number, or an index expression",
            hint="write x.round(2); to the nearest multiple of y: (x / y).round() * y",
        ) from None


def _is_index(value: object) -> TypeGuard[Expr]:
    return isinstance(value, Expr) and not is_condition(value)


def _of_float(tensor: Tensor, digits: Expr | int) -> Tensor:
    if isinstance(digits, int):
        if not digits:
            return pointwise(tensor.kind, el.Round, tensor)
        if abs(digits) > MOST_DIGITS[tensor.dtype]:  # finer than its last bit, or coarser than all
            return tensor if digits > 0 else tensor * 0.0
        scale = float(10 ** abs(digits))
        return (
            pointwise(tensor.kind, el.Round, tensor * scale) / scale
            if digits > 0
            else pointwise(tensor.kind, el.Round, tensor / scale) * scale
        )
    more, fewer = (_power_of_ten(tensor.kind, d, tensor.dtype) for d in (digits, -digits))
    return pointwise(tensor.kind, el.Round, tensor * more / fewer) / more * fewer


def _of_integer(tensor: Tensor, digits: Expr | int) -> Tensor:
    """Round an integer to a multiple of a power of ten, half to even."""
    y = tensor.cast(accumulator(tensor.dtype))
    if isinstance(digits, int) and -digits > MOST_DIGITS[y.dtype]:
        return tensor * 0
    ten = _power_of_ten(y.kind, -digits, y.dtype)
    down = y // ten
    twice = (y - down * ten) * 2
    up = (twice > ten) | ((twice == ten) & (down % 2 == 1))
    return ((down + up.cast(y.dtype)) * ten).cast(tensor.dtype)


def _power_of_ten(kind: type[Tensor], digits: Expr | int, dtype: str) -> Tensor:
    """The power 10^digits, from a table for index expressions; 1 for negative digits."""
    most = MOST_DIGITS[dtype]
    table = np.array([10**k for k in range(most + 1)], np.float64 if is_float(dtype) else np.int64)
    if isinstance(digits, int):
        return convert(kind, table[digits], dtype)
    at = ex.minimum(ex.maximum(digits, 0), most)
    return take(convert(kind, table, dtype), convert(kind, wrap(at)))
