"""Creation of tensors from a shape: constants, ranges, and random integers and Booleans."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from recurra.errors import RecurraError, ShapeError
from recurra.frontend.dims import Dims
from recurra.frontend.dtype_objects import Dtype
from recurra.frontend.functions import box_of, uniform
from recurra.frontend.index_arguments import Size, unwrap
from recurra.frontend.operator_table import operator
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.frontend.tensor_conversion import positions
from recurra.ir.dims import MAX_POINTS
from recurra.ir.expr import Expr

Shape = Size | Sequence[Size]
DISTINCT_DRAWS = 2**23  # the number of distinct values of `uniform`


@operator("rc.full(shape=(2, 3), value=1.0)", "np.full", "torch.full")
def full(shape: Shape, value: object, dtype: str | Dtype | None = None) -> RecurrentTensor:
    """A tensor filled with one number, the same at every point; a size may be a bound."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    y = as_tensor(value, dtype)
    for n in reversed(sizes):
        y = y.expand(n)
    return y


@operator("rc.zeros(shape=(2, 3))", "np.zeros", "torch.zeros")
def zeros(shape: Shape, dtype: str | Dtype = "f32") -> RecurrentTensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype)


@operator("rc.ones(shape=(2, 3))", "np.ones", "torch.ones")
def ones(shape: Shape, dtype: str | Dtype = "f32") -> RecurrentTensor:
    """A tensor of ones."""
    return full(shape, 1, dtype)


@operator("rc.arange(start=0, stop=10, step=2)", "np.arange", "torch.arange")
def arange(
    start: float | Size,
    stop: float | Size | None = None,
    step: float | Size = 1,
    dtype: str | Dtype | None = None,
) -> RecurrentTensor:
    """The vector start, start + step, .., below stop; arange(n) starts at 0. Ends may be bounds."""
    if stop is None:
        start, stop = 0, start
    ends: tuple[Any, ...] = (unwrap(start), unwrap(stop), unwrap(step))
    if not any(isinstance(e, Expr) for e in ends):
        count = (ends[1] - ends[0]) / ends[2] if ends[2] else inf
        if count > MAX_POINTS:
            raise RecurraError.at_user_line(
                f"arange({start}, {stop}, {step}) would have {count:.3g} elements",
                facts=f"it counts by {step}; an axis has {MAX_POINTS} at most",
                hint="rc.arange(1000)",
            )
        return as_tensor(np.arange(*ends), dtype)
    if ends[2] != 1:
        raise RecurraError.at_user_line(
            f"arange({start}, {stop}, {step}) has no size that is known",
            facts="between ends that are bounds it counts by 1",
            hint=f"count, then multiply: rc.arange(n) * {step} + {start}",
        )
    found = positions(RecurrentTensor, ends[1] - ends[0]) + as_tensor(start)
    return found if dtype is None else found.cast(dtype)


@operator("rc.randint(low=0, high=10, domain=(t,), shape=(2, 3))", "rng.integers", "torch.randint")
def randint(
    low: object,
    high: object,
    domain: Dims = (),
    shape: int | tuple[int, ...] = (),
    dtype: str | Dtype = "i32",
) -> RecurrentTensor:
    """Random integers in low .. high - 1, of at most 2²³ values; without a domain, drawn once."""
    if type(low) is int and type(high) is int and not 0 < high - low <= DISTINCT_DRAWS:
        raise RecurraError.at_user_line(
            f"randint cannot draw from {low} .. {high - 1}",
            facts=f"these are {high - low} numbers; it draws from 1 to {DISTINCT_DRAWS} of them",
            hint="put two draws together: rc.randint(0, m) * n + rc.randint(0, n)",
        )
    lo, hi = as_tensor(low), as_tensor(high)
    return lo.cast(dtype) + (uniform(domain, shape) * (hi - lo)).floor().cast(dtype)


@operator("rc.bernoulli(p=0.5, domain=(t,), shape=(2, 3))", "rng.random() < p", "torch.bernoulli")
def bernoulli(
    p: object, domain: Dims | None = None, shape: int | tuple[int, ...] | None = None
) -> RecurrentTensor:
    """Random Booleans, true with probability p; for a tensor p, with its domain and shape."""
    chance = as_tensor(p)
    if isinstance(p, (int, float)) and not 0 <= p <= 1:
        raise ShapeError.at_user_line(
            f"{p} is no probability",
            facts="it is a number from 0 to 1",
            hint="of logits write rc.bernoulli(x.sigmoid())",
        )
    box = chance.domain if domain is None else box_of(domain)
    own: Any = chance.shape if shape is None else shape
    return uniform(box, own) < chance
