"""A product of operands with fewer bits than its result: they are widened part by part.

    y[v] = Σ f32(w[v,d]) · x[d]      →      for a part p of v:  y[p] = Σ f32(w[p,d]) · x[d]

A widened part stays in the cache of a core: only the narrow operand is read from memory, and no
wide copy of all of it ever exists.
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
    """An array whose parts can be read and written."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...
    def __getitem__(self, key: Key, /) -> Self: ...
    def __setitem__(self, key: Key, value: Any, /) -> None: ...


A = TypeVar("A", bound=PartedArray)


@dataclass(frozen=True)
class OperandParts:
    """The parts of an operand along an axis that only it and the result have.

    `operand` is its index; `axis` and `out` are the axis in it and in the result, of `size` points,
    `length` to a part.
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
    """The parts of the largest narrow operand; None if it is small or cannot be cut."""
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
    # Two at least: XLA would hoist the widening of a whole operand out of loops around the product.
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
    """Compute the product part by part with a library's cast, einsum and empty."""
    by = parts(labels, dtype, *xs)
    if by is None:
        return einsum(labels, *map(cast, xs))
    result, operands = empty(result_shape(labels, *xs), dtype), list(xs)
    for mine, out in by:
        operands[by.operand] = xs[by.operand][mine]
        result[out] = einsum(labels, *map(cast, operands))
    return result


def widened(labels: str, dtype: str, *xs: np.ndarray) -> np.ndarray:
    """The product of NumPy arrays."""

    def cast(array: np.ndarray) -> np.ndarray:
        return array.astype(dtype, copy=False)

    return in_parts(labels, dtype, xs, cast, numpy_einsum, np.empty)
