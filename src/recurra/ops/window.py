"""Windows along axes, overlapping or not, and back: what convolutions and pooling are made of."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import product
from operator import add
from typing import Any, Self

from recurra.ir.expr import Expr, evaluate
from recurra.ir.op import Array, Op
from recurra.ir.types import Type


class Windows(Op):
    """y[.., k, .., j, .., ..] = x[.., k + stride · j, .., ..] on axes from `axis` on

    One axis of size n becomes `size` and, behind all sizes, the windows that fit into n.
    """

    axis: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def counts(self, lengths: tuple[Expr | int, ...]) -> tuple[Expr | int, ...]:
        """How many windows fit into each axis."""
        steps = zip(lengths, self.sizes, self.strides, strict=True)
        return tuple((n - size) // stride + 1 for n, size, stride in steps)

    def infer(self, x: Type) -> Type:
        end = self.axis + len(self.sizes)
        lengths = x.shape[self.axis : end]
        if len(lengths) != len(self.sizes):
            raise TypeError(f"windows: {x} has no axes {self.axis}:{end}")
        if any(isinstance(n, int) and n < s for n, s in zip(lengths, self.sizes, strict=True)):
            raise TypeError(f"windows: none of {self.sizes} fits into {lengths}")
        shape = (*x.shape[: self.axis], *self.sizes, *self.counts(lengths), *x.shape[end:])
        return Type(x.dtype, shape)

    def eval(self, xp: Any, x: Array) -> Array:
        end = self.axis + len(self.sizes)
        counts: Any = self.counts(x.shape[self.axis : end])
        lead = (slice(None),) * self.axis
        rows = [
            x[(*lead, *(slice(k, k + s * (m - 1) + 1, s) for k, s, m in corner))]
            for corner in (
                zip(ks, self.strides, counts, strict=True)
                for ks in product(*map(range, self.sizes))
            )
        ]
        shape = (*x.shape[: self.axis], *self.sizes, *counts, *x.shape[end:])
        return xp.reshape(xp.stack(rows, axis=self.axis), shape)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        lengths = x.shape[self.axis : self.axis + len(self.sizes)]
        back = Overlap(axis=self.axis, sizes=self.sizes, strides=self.strides, lengths=lengths)
        return (g.apply(back, g),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)


class Overlap(Op):
    """y[.., n, .., ..] = Σ of x[.., k, .., j, .., ..] where k + stride · j = n: windows turned"""

    axis: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    lengths: tuple[Expr | int, ...]

    def infer(self, x: Type) -> Type:
        end = self.axis + 2 * len(self.sizes)
        have = x.shape[self.axis : end]
        windows = Windows(axis=0, sizes=self.sizes, strides=self.strides)
        if have != (*self.sizes, *windows.counts(self.lengths)):
            raise TypeError(f"overlap: {x} has no windows of {self.lengths} at axis {self.axis}")
        return Type(x.dtype, (*x.shape[: self.axis], *self.lengths, *x.shape[end:]))

    def run(self, xp: Any, env: Any, x: Array) -> Array:
        for k in reversed(range(len(self.sizes))):  # the last first: the others keep their places
            n, size = evaluate(self.lengths[k], env), self.axis + k
            x = _overlapped(xp, x, size, size + k + 1, n, self.strides[k])
        return x

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g.apply(Windows(axis=self.axis, sizes=self.sizes, strides=self.strides), g),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)


def _overlapped(xp: Any, x: Array, size: int, count: int, n: int, stride: int) -> Array:
    """The axis `size` of elements and the axis `count` of windows, added up along n places."""
    parts: list[Any] = []
    for k in range(x.shape[size]):
        row = _spread(xp, xp.take(x, xp.asarray(k), axis=size), count - 1, stride)
        parts.append(_between(xp, row, count - 1, k, n - k - row.shape[count - 1]))
    return reduce(add, parts)


def _spread(xp: Any, x: Array, axis: int, stride: int) -> Array:
    """The elements of an axis, `stride` apart."""
    if stride == 1:
        return x
    wide = xp.expand_dims(x, axis=axis + 1)
    gap = xp.zeros((*x.shape[: axis + 1], stride - 1, *x.shape[axis + 1 :]), dtype=x.dtype)
    shape = (*x.shape[:axis], x.shape[axis] * stride, *x.shape[axis + 1 :])
    spread = xp.reshape(xp.concat((wide, gap), axis=axis + 1), shape)
    last = (slice(None),) * axis + (slice(0, shape[axis] - stride + 1),)
    return spread[last]


def _between(xp: Any, x: Array, axis: int, before: int, after: int) -> Array:
    """`x` with zeros around it along an axis."""
    ends = [
        xp.zeros((*x.shape[:axis], n, *x.shape[axis + 1 :]), dtype=x.dtype) for n in (before, after)
    ]
    return xp.concat((ends[0], x, ends[1]), axis=axis)
