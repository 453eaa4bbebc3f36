"""Compute the fill of an op's result from the fills of its operands, as a number if known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from recurra.ir.types import NUMPY_NAME, is_float
from recurra.ops import elementwise as el
from recurra.ops import special
from recurra.transforms.padding.padded_axes import (
    ANY,
    FINITE,
    Fill,
    Unknown,
    constant_fill,
    finite,
    join,
)

_TOTAL = (
    el.Add,
    el.Sub,
    el.Mul,
    el.Maximum,
    el.Minimum,
    el.Neg,
    el.Abs,
    el.Sign,
    el.Floor,
    el.Round,
    el.Square,
    el.HyperbolicTangent,
    el.Logistic,
    el.Sin,
    el.Cos,
    special.Erf,
    special.Erfc,
    el.Detach,
    el.Copy,
    el.Cast,
)  # finite on every finite number


def pointwise(op: Any, xs: Sequence[Fill], dtypes: Sequence[str], has: Sequence[bool]) -> Fill:
    """Return the fill of an elementwise result; `has` tells which operands have the axis."""
    numbers = [x for x in xs if not isinstance(x, Unknown)]
    if len(numbers) == len(xs):
        return _apply(op, numbers, dtypes)
    match op:
        case el.Mul() | el.And() if 0 in numbers and all(map(finite, xs)):
            return 0.0
        case el.Div() if xs[0] == 0 and xs[1] is FINITE and not has[1]:
            return 0.0
        case el.Or() if True in numbers:
            return 1.0
        case el.Where():
            return join(*xs[1:]) if isinstance(xs[0], Unknown) else xs[1] if xs[0] else xs[2]
        case el.Comparison() | el.And() | el.Or() | el.Not():
            return FINITE
        case el.Div() if (
            finite(xs[0]) and numbers and finite(numbers[-1]) and xs[1] == numbers[-1] != 0
        ):
            return FINITE
        case _ if not any(map(is_float, dtypes)):
            return FINITE
        case _:
            return FINITE if isinstance(op, _TOTAL) and all(map(finite, xs)) else ANY


def _apply(op: Any, numbers: Sequence[float], dtypes: Sequence[str]) -> Fill:
    names = ["float32" if d == "bf16" else NUMPY_NAME[d] for d in dtypes]
    with np.errstate(all="ignore"):
        xs = [np.asarray(x, dtype=name) for x, name in zip(numbers, names, strict=True)]
        return constant_fill(float(op.apply(np, *xs)))


def contracted(xs: Sequence[Fill]) -> Fill:
    """Return the fill of a sum of products, from those of the factors."""
    if not all(map(finite, xs)):
        return ANY
    return 0.0 if 0 in xs else FINITE


def reduced(fill: Fill, monoid: str, neutral: float, masked: bool) -> Fill:
    """Return the fill of an axis after a reduction of others; `masked` if these had padding."""
    if monoid == "add":
        return contracted([fill])
    if fill == neutral:
        return fill
    if monoid.startswith("logical"):
        return FINITE
    return ANY if masked or monoid == "mul" else fill
