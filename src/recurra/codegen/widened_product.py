"""A product whose operands have fewer bits than it computes in: they are widened part by part.

    y[v] = Σ f32(w[v,d]) · x[d]      →      for a part p of v:  y[p] = Σ f32(w[p,d]) · x[d]

A part stays in the cache of a core, so that what comes from memory is the operand as it is, and no
copy of it in more bits is ever whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from recurra.cost.thresholds import MAX_WIDENED_BYTES, WIDENED_PART_BYTES
from recurra.ops.contraction import numpy_einsum, result_shape

Key = tuple[slice, ...]


class PartedArray(Protocol):
    """An array whose parts are read and written."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...
    def __getitem__(self, key: Key, /) -> Self: ...
    def __setitem__(self, key: Key, value: Any, /) -> None: ...


A = TypeVar("A", bound=PartedArray)


@dataclass(frozen=True)
class OperandParts:
    """The parts of an operand along an axis that nothing but it and the result have.

    `operand` is which one it is, `axis` and `out` are the axis in it and in the result, of `size`
    points, `length` to a part.
    """

    operand: int
    axis: int
    out: int
    size: int
    length: int

    def __iter__(self) -> Iterator[tuple[Key, Key]]:
        """The indices of each part: in the operand, in the result."""
        for start in range(0, self.size, self.length):
            part = slice(start, min(start + self.length, self.size))
            before = (self.axis, self.out)
            mine, out = ((*(slice(None),) * n, part) for n in before)
            yield mine, out


def parts(labels: str, dtype: str, *xs: PartedArray) -> OperandParts | None:
    """The parts of the largest operand that is to be widened; None if it is small or has none."""
    ins, out = labels.split("->")
    mine = ins.split(",")
    narrow = [k for k, x in enumerate(xs) if str(x.dtype).rpartition(".")[2] != dtype]
    k = max(narrow, key=lambda k: prod(map(int, xs[k].shape)))
    others = "".join(s for j, s in enumerate(mine) if j != k)
    free = [a for a, c in enumerate(mine[k]) if c in out and c not in others]
    nbytes = np.dtype(dtype).itemsize * prod(map(int, xs[k].shape))
    if nbytes <= MAX_WIDENED_BYTES or not free:
        return None
    axis = max(free, key=lambda a: xs[k].shape[a])
    size = int(xs[k].shape[axis])
    # Two at least: XLA would widen all of what is read whole ahead of the loop around the product.
    length = max(1, min(size * WIDENED_PART_BYTES // nbytes, -(-size // 2)))
    return OperandParts(k, axis, out.index(mine[k][axis]), size, length)


def in_parts(
    labels: str,
    dtype: str,
    xs: Sequence[A],
    cast: Callable[[A], A],
    einsum: Callable[..., A],
    empty: Callable[[tuple[int, ...], str], A],
) -> A:
    """The product, by what a library calls these."""
    by = parts(labels, dtype, *xs)
    if by is None:
        return einsum(labels, *map(cast, xs))
    made, some = empty(result_shape(labels, *xs), dtype), list(xs)
    for mine, out in by:
        some[by.operand] = xs[by.operand][mine]
        made[out] = einsum(labels, *map(cast, some))
    return made


def widened(labels: str, dtype: str, *xs: np.ndarray) -> np.ndarray:
    """The product of arrays of NumPy."""

    def cast(array: np.ndarray) -> np.ndarray:
        return array.astype(dtype, copy=False)

    return in_parts(labels, dtype, xs, cast, numpy_einsum, np.empty)
