"""Primitives that read elements of arrays: at constants (slice) and by data (gather).

y = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)] table i
  → y = take(table, i)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from recurra.frontend.dims import wrap
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.expr import Expr
from recurra.ir.op import LETTERS, join_labels
from recurra.ir.types import is_float
from recurra.ops import elementwise as el
from recurra.ops.indexing import Take
from recurra.ops.window import Windows

Params = Mapping[str, Any]


def sliced(params: Params, x: RecurrentTensor) -> RecurrentTensor:
    """Translate slice: x[lo:hi:stride] on every axis."""
    strides = params["strides"] or (1,) * len(x.shape)
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    for k, (lo, hi, stride) in enumerate(bounds):
        x = x.cut(lo, hi, axis=k) if (lo, hi) != (0, x.shape[k]) else x
        if stride != 1:  # windows of one element
            x = x.apply(Windows(axis=k, sizes=(1,), strides=(stride,)), x).index(0, axis=k)
    return x


def dynamic_slice(params: Params, x: RecurrentTensor, *starts: RecurrentTensor) -> RecurrentTensor:
    """Translate dynamic_slice: a slice of each axis at a start by data, clamped so that it fits."""
    for k, (start, size) in enumerate(zip(starts, params["slice_sizes"], strict=True)):
        have = x.shape[k]
        if size == have:
            continue
        first = _clamped(start, have - size).reshape(1)
        x = x.take(iota((size,), 0) + first if size != 1 else first, axis=k)
    return x


def gather(params: Params, x: RecurrentTensor, indices: RecurrentTensor) -> RecurrentTensor:
    """Translate gather: slices of some axes at starts by data, such as x[i, j], take_along_axis.

    The axes of `x` are reordered to [indexed.., rows.., whole..], and the indexed ones flattened to
    one. Positions on it have the axes of `indices`, then one for each axis of the slices.
    """
    d, sizes, rank = params["dimension_numbers"], params["slice_sizes"], len(indices.shape) - 1
    starts = {k: indices.index(j, axis=rank) for j, k in enumerate(d.start_index_map)}
    moves = [k for k in starts if sizes[k] != x.shape[k]] or list(starts)[:1]
    rows = list(d.operand_batching_dims)
    whole = [k for k in range(len(x.shape)) if k not in (*moves, *rows)]
    parts = [k for k in range(len(x.shape)) if k in moves and k not in d.collapsed_slice_dims]
    inner = [k for k in whole if k not in d.collapsed_slice_dims]
    flat = x.transpose(*moves, *rows, *whole).reshape(
        prod(x.shape[k] for k in moves), *(x.shape[k] for k in (*rows, *inner))
    )
    at = _places(x, starts, moves, parts, sizes)

    lx = LETTERS[: len(flat.shape)]
    row = iter(lx[1 : 1 + len(rows)])
    new = iter(LETTERS[len(lx) :])
    shared = d.start_indices_batching_dims
    batch = [next(row) if k in shared else next(new) for k in range(rank)]
    letter = {k: next(new) for k in parts} | dict(zip(inner, lx[1 + len(rows) :], strict=True))
    offset = iter([letter[k] for k in sorted(letter)])
    own, places = iter(batch), range(rank + len(letter))
    out = "".join(next(offset) if k in d.offset_dims else next(own) for k in places)
    li = "".join([*batch, *(letter[k] for k in parts)])
    y = flat.apply(Take(labels=f"{lx},{li}->{out}", axis=lx[0]), flat, at)
    if "FILL" not in str(params["mode"]):
        return y
    inside = [_in_range(s, x.shape[k] - sizes[k]) for k, s in starts.items()]
    where = el.Where(labels=join_labels(("".join(batch), out, ""), out))
    fill = as_tensor(_fill_value(params["fill_value"], y.dtype), y.dtype)
    return y.apply(where, reduce(lambda a, b: a & b, inside), y, fill)


def _places(
    tensor: RecurrentTensor,
    starts: Mapping[int, RecurrentTensor],
    moves: Sequence[int],
    parts: Sequence[int],
    sizes: Sequence[Expr | int],
) -> RecurrentTensor:
    """The position of each element on the flattened indexed axes: [*batch, *parts]."""
    shape = tuple(sizes[k] for k in parts)
    total: RecurrentTensor | None = None
    for k in moves:
        place = _clamped(starts[k], tensor.shape[k] - sizes[k])
        for n in shape:
            place = place.expand(n, axis=len(place.shape))
        if k in parts and sizes[k] != 1:
            place = place + iota(shape, parts.index(k))
        total = place if total is None else total * wrap(tensor.shape[k]) + place
    assert total is not None, "a gather has an index"
    return total


def iota(shape: Sequence[Expr | int], axis: int, dtype: str = "i32") -> RecurrentTensor:
    """The position along one axis, for each element of a shape."""
    sizes = [n for n in shape if isinstance(n, int)]
    if len(sizes) == len(shape):
        along = np.arange(sizes[axis]).reshape([-1 if k == axis else 1 for k in range(len(sizes))])
        return as_tensor(np.broadcast_to(along, sizes), dtype)
    place = as_tensor(1, "i32").expand(shape[axis]).cumsum() - 1
    for k in (k for k in range(len(shape)) if k != axis):
        place = place.expand(shape[k], axis=k)
    return place.cast(dtype)


def _clamped(indices: RecurrentTensor, last: Expr | int) -> RecurrentTensor:
    return indices.cast("i32").clip(0, wrap(last))


def _in_range(indices: RecurrentTensor, last: Expr | int) -> RecurrentTensor:
    """Is a position in 0 .. last?"""
    indices = indices.cast("i32")
    return (indices >= 0) & (indices <= wrap(last))


def _fill_value(fill: Any, dtype: str) -> Any:
    """The value that jax.numpy gathers outside an axis."""
    if fill is not None:
        return fill
    return float("nan") if is_float(dtype) else dtype == "bool" or -(2**31)
