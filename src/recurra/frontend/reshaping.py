"""Methods of tensors that move elements: transpose, reshape, broadcast, repeat, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from recurra.errors import ShapeError
from recurra.frontend.axes import Axes, axes_of, axis_of
from recurra.frontend.index_arguments import Size, unwrap
from recurra.frontend.operator_table import operator
from recurra.frontend.tensor_base import Operand, Tensor
from recurra.frontend.tensor_conversion import convert, pointwise, positions, squeezed
from recurra.ir.expr import Expr, div, mul
from recurra.ir.op import LETTERS
from recurra.ops import elementwise as el
from recurra.ops import indexing, movement


def _unpacked(sizes: tuple[Any, ...]) -> tuple[Size, ...]:
    """The sizes of a variadic call: several arguments, or one tuple or list."""
    one = sizes[0] if len(sizes) == 1 else None
    return tuple(one) if isinstance(one, (tuple, list)) else sizes


@operator("x.transpose(1, 0)", "np.transpose", "torch.permute")
def transpose(x: Tensor, *order: int | Sequence[int]) -> Tensor:
    """Permute the axes to the given order, `2, 0, 1` or `(2, 0, 1)`; reversed by default."""
    rank = len(x.shape)
    axes = _unpacked(order) or tuple(range(rank))[::-1]
    normalized: Any = tuple(
        int(a) % rank if isinstance(a, int | np.integer) and -rank <= a < rank else a for a in axes
    )
    if sorted(map(str, normalized)) != sorted(map(str, range(rank))):
        raise ShapeError.at_user_line(
            f"{axes} is no order of the axes of {x.type}",
            facts=f"it has {rank} axes, and each stands in the order once",
            hint=_full_order(normalized, rank),
        )
    return x.apply(movement.Transpose(order=normalized), x)


def _full_order(axes: tuple[Any, ...], rank: int) -> str:
    """The hint with a full order; two axes are swapped, as by torch's transpose."""
    every = list(range(rank))
    if len(axes) == 2 and set(axes) <= set(every):
        a, b = axes
        every[a], every[b] = b, a
    return f"write x.transpose({', '.join(map(str, every))})"


@operator("x.permute(1, 0)", "np.permute_dims", "torch.permute")
def permute(x: Tensor, *order: int | Sequence[int]) -> Tensor:
    """Permute the axes: the same as `transpose`."""
    return transpose(x, *order)


@operator("x.reshape(3, -1)", "np.reshape", "torch.reshape")
def reshape(x: Tensor, *shape: Size | Sequence[Size]) -> Tensor:
    """Reshape in row-major order, to `2, 3` or `(2, 3)`; one size may be -1 for the rest."""
    sizes = [unwrap(n) for n in _unpacked(shape)]
    if -1 in sizes:
        sizes[sizes.index(-1)] = _size_left(x, sizes)
    return x.apply(movement.Reshape(shape=tuple(sizes)), x)


def _size_left(operand: Operand, sizes: list[Any]) -> Any:
    """The size that -1 stands for: the number of elements divided by the other sizes."""
    known, of, by = list(sizes), list(operand.shape), 1
    known.remove(-1)
    for n in known:
        if isinstance(n, Expr) and n in of:
            of.remove(n)
        else:
            by = by * n
    total: Any = prod(of)  # pyright: ignore[reportArgumentType]
    left = div(total, by) if isinstance(by, int) and by > 0 else -1
    if left == -1 or left * by != total:
        raise ShapeError.at_user_line(
            f"-1 has no value in the shape {', '.join(map(str, sizes))}",
            facts=f"this is {operand!r}, and {total} elements are not a multiple of {by}",
            hint="write the size instead of -1, a number or an index expression such as B * 2",
        )
    return left


@operator("x.squeeze()", "np.squeeze", "torch.squeeze")
def squeeze(x: Tensor, axis: Axes = None) -> Tensor:
    """Drop axes of size 1: the given ones, or all."""
    ones = tuple(a for a, n in enumerate(x.shape) if n == 1)
    axes = ones if axis is None else axes_of(x, axis)
    for a in axes:
        if a not in ones:
            raise ShapeError.at_user_line(
                f"axis {a} cannot be squeezed: its size is {x.shape[a]}",
                facts=f"the tensor is {x!r}",
                hint=f"an element of it is x.index(0, axis={a})",
            )
    return squeezed(x, axes)


@operator("x.flip(axis=0)", "np.flip", "torch.flip")
def flip(x: Tensor, axis: Axes = None) -> Tensor:
    """Reverse the elements along axes, by default all of them."""
    for a in axes_of(x, axis):
        x = x.apply(movement.Flip(axis=a), x)
    return x


@operator("x.repeat(times=3, axis=0)", "np.repeat", "torch.repeat_interleave")
def repeat(x: Tensor, times: Size, *more: object, axis: int | None = None) -> Tensor:
    """Repeat each element `times` times along an axis; torch's `repeat` is `tile`."""
    if axis is None or more or isinstance(times, bool) or not _is_size(times):
        raise ShapeError.at_user_line(
            "repeat takes one number and an axis",
            facts="NumPy's repeats every element, torch's the whole tensor",
            hint="write x.repeat(2, axis=0) for NumPy's, x.tile(2, 3) for torch's x.repeat(2, 3)",
        )
    axis = axis_of(x, axis)
    return _copies(x, times, axis, axis + 1)


def _is_size(value: object) -> bool:
    return isinstance(unwrap(value), int | Expr)


@operator("x.tile(2, 3)", "np.tile", "torch.tile")
def tile(x: Tensor, *times: Size | Sequence[Size]) -> Tensor:
    """Repeat the whole tensor along its last axes, or along new axes before them."""
    counts = _unpacked(times)
    for _ in range(len(counts) - len(x.shape)):
        x = expand(x, 1)
    for a, n in zip(range(-len(counts), 0), counts, strict=True):
        if unwrap(n) != 1:
            axis = axis_of(x, a)
            x = _copies(x, n, axis, axis)
    return x


def _copies(tensor: Tensor, times: Size, axis: int, new: int) -> Tensor:
    """Expand along a new axis at `new`, and merge it with `axis`."""
    size = mul(unwrap(times), tensor.shape[axis])
    return reshape(
        expand(tensor, times, new), *tensor.shape[:axis], size, *tensor.shape[axis + 1 :]
    )


@operator("x.tril(k=0)", "np.tril", "torch.tril")
def tril(x: Tensor, k: object = 0) -> Tensor:
    """The lower triangle: zero above the k-th diagonal of the last two axes."""
    zero = convert(x.kind, 0, x.dtype)
    return pointwise(x.kind, el.Where, _diagonal(x) <= k, x, zero)


@operator("x.triu(k=0)", "np.triu", "torch.triu")
def triu(x: Tensor, k: object = 0) -> Tensor:
    """The upper triangle: zero below the k-th diagonal of the last two axes."""
    zero = convert(x.kind, 0, x.dtype)
    return pointwise(x.kind, el.Where, _diagonal(x) >= k, x, zero)


def _diagonal(tensor: Tensor) -> Tensor:
    """The matrix of column minus row, for the last two axes."""
    if len(tensor.shape) < 2:
        raise ShapeError.at_user_line(
            f"{tensor.type} has no diagonal",
            facts="diagonals are of the last two axes",
            hint="read a range of a dim as an axis: x[0:T]",
        )
    columns, rows = (positions(tensor.kind, n) for n in (tensor.shape[-1], tensor.shape[-2]))
    return columns - expand(rows, 1, 1)


@operator("x.outer(y)", "np.outer", "torch.outer")
def outer(x: Tensor, y: object) -> Tensor:
    """The outer product x[j] · y[k] of vectors; other tensors are flattened."""
    x, y = (v if len(v.shape) == 1 else reshape(v, -1) for v in (x, convert(x.kind, y)))
    return expand(x, 1, 1) * y


@operator("x.index(at=0, axis=0)", "x[at]", "torch.select")
def index(x: Tensor, at: Size, axis: int = 0) -> Tensor:
    """Element `at` (a number or an index expression) of an axis; compile proves it in range."""
    at, axis = unwrap(at), axis_of(x, axis)
    if type(at) is not int and not isinstance(at, Expr):
        raise ShapeError.at_user_line(
            f"{at!r} is no position on axis {axis}",
            facts=f"the tensor is {x!r}",
            hint="for positions by data use .take(i)",
        )
    if type(at) is int and at < 0:
        at = x.shape[axis] + at
    return x.apply(indexing.Pick(axis=axis, at_=at), x)


@operator("x.cut(lo=0, hi=2, axis=0)", "x[lo:hi]", "torch.narrow")
def cut(x: Tensor, lo: Size, hi: Size, axis: int = 0) -> Tensor:
    """Elements lo .. hi-1 of an axis; unlike brackets, it never indexes dims."""
    start, end = unwrap(lo), unwrap(hi)
    return x.apply(movement.Cut(axis=axis_of(x, axis), start=start, size=end - start), x)


@operator("x.expand(size=4, axis=0)", "np.broadcast_to", "torch.Tensor.expand")
def expand(x: Tensor, size: Size, axis: int = 0) -> Tensor:
    """Copy along a new axis, whose size may be symbolic."""
    full = LETTERS[: len(x.shape) + 1]
    axis %= len(full)
    kept = full[:axis] + full[axis + 1 :]
    return x.apply(movement.Expand(labels=f"{kept}->{full}", sizes=(unwrap(size),)), x)


@operator("x.broadcast_to(shape=(4, *x.shape))", "np.broadcast_to", "torch.broadcast_to")
def broadcast_to(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """Broadcast to a shape: copy along new leading axes, and along axes of size 1."""
    sizes = tuple(map(unwrap, shape))
    lead = len(sizes) - len(x.shape)
    if lead < 0 or any(a not in (1, b) for a, b in zip(x.shape, sizes[lead:], strict=True)):
        raise ShapeError.at_user_line(
            f"{x.type} does not fit ({', '.join(map(str, sizes))})",
            facts="axes are matched from the last one; an axis of size 1 fits any",
            hint="x.reshape(..) it first, as to put an axis of size 1 where one is missing",
        )
    full = LETTERS[: len(sizes)]
    ones = tuple(k for k, n in enumerate(x.shape) if n == 1 and sizes[lead + k] != 1)
    kept = "".join(c for k, c in enumerate(full[lead:]) if k not in ones)
    if kept == full:
        return x
    new = tuple(n for c, n in zip(full, sizes, strict=True) if c not in kept)
    return x.apply(movement.Expand(labels=f"{kept}->{full}", sizes=new), squeezed(x, ones))


def diagonal(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """Take the diagonal of axes that share a label; return it with the remaining labels."""
    twice = next((c for c in labels if labels.count(c) > 1), None)
    if twice is None or len(labels) != len(x.shape):
        return x, labels
    first, second = labels.index(twice), labels.rindex(twice)
    if x.shape[first] != x.shape[second]:
        return x, labels  # the einsum refuses it later
    axes = LETTERS[: len(labels)]
    c, rest = axes[second], axes[:second] + axes[second + 1 :]
    op = indexing.Take(labels=f"{axes},{axes[first]}->{rest}", axis=c)
    y = x.apply(op, x, positions(x.kind, x.shape[second]))
    return diagonal(y, labels[:second] + labels[second + 1 :])
