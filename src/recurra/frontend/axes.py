"""Axis arguments: numbers that count axes from the first or, if negative, from the last."""

from __future__ import annotations

from numbers import Integral

from recurra.errors import ShapeError
from recurra.frontend.tensor_base import Operand

Axes = int | tuple[int, ...] | list[int] | None


def axes_of(x: Operand, axis: Axes) -> tuple[int, ...]:
    """The axes as sorted, non-negative numbers; raises ShapeError for one that does not exist."""
    rank = len(x.shape)
    several = isinstance(axis, (tuple, list))
    every: object = range(rank) if axis is None else axis if several else (axis,)
    for a in every:
        if not isinstance(a, Integral):
            raise ShapeError.at_user_line(
                f"{a} is no axis",
                facts=f"the tensor is {x!r}: axes are counted, dims are read over",
                hint=f"write x[{_read_over(x, str(a))}].sum(axis=0) for a dim, "
                "x.sum(axis=0) for an axis"
                if str(a) in x.builder.dim_names()
                else "write rc.maximum(x, y) of two tensors, x.max(axis=0) along an axis",
            )
        if not -rank <= int(a) < rank:
            raise ShapeError.at_user_line(
                f"there is no axis {a}",
                facts=f"the tensor is {x!r}",
                hint="a range of a dim becomes an axis: x[t:T], x[0:T]"
                if not rank
                else f"its axes are {-rank}..{rank - 1}",
            )
    return tuple(sorted(int(a) % rank for a in every))


def _read_over(operand: Operand, dim: str) -> str:
    """The text of the index that reads all points of a dim, for an error."""
    ranges = operand.domain if dim in operand.domain.dims else operand.builder.domain({dim})
    return ", ".join(f"{r.lo}:{r.hi}" if r.dim == dim else r.dim for r in ranges)


def axis_of(x: Operand, axis: Axes) -> int:
    """One axis as a non-negative number; raises ShapeError if it does not exist."""
    return axes_of(x, axis)[0]
