"""Windows along axes, and their transpose: the parts of convolutions and pooling."""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import add
from typing import Any

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import Array, Axis
from recurra.ir.types import Type


class Windows(Axis):
    """y[.., k, .., j, .., ..] = x[.., gap · k + stride · j, .., ..] on axes from `axis` on

    Each axis becomes an axis of elements, `sizes`; after these are the axes of windows, as many as
    fit. `gaps` are dilations; without them the elements of a window are adjacent.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    gaps: tuple[int, ...] = ()

    def counts(self, lengths: tuple[Expr | int, ...]) -> tuple[Expr | int, ...]:
        """Count the windows that fit into each axis."""
        steps = zip(lengths, spans(self.sizes, self.gaps), self.strides, strict=True)
        return tuple((n - span) // stride + 1 for n, span, stride in steps)

    def infer(self, operand: Type) -> Type:
        end = self.axis + len(self.sizes)
        lengths = operand.shape[self.axis : end]
        if len(lengths) != len(self.sizes):
            raise TypeError(f"windows: {operand} has no axes {self.axis}:{end}")
        reach = spans(self.sizes, self.gaps)
        if any(isinstance(n, int) and n < s for n, s in zip(lengths, reach, strict=True)):
            raise TypeError(f"windows: none of {self.sizes} fits into {lengths}")
        shape = (
            *operand.shape[: self.axis],
            *self.sizes,
            *self.counts(lengths),
            *operand.shape[end:],
        )
        return Type(operand.dtype, shape)

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        end = self.axis + len(self.sizes)
        counts: Any = self.counts(operand.shape[self.axis : end])
        lead = (slice(None),) * self.axis
        gaps, reach = dilations(self.sizes, self.gaps), spans(self.sizes, self.gaps)
        if self.strides == self.sizes == reach:
            return _split_axes(xp, operand, self.axis, self.sizes, counts)
        rows = [
            operand[(*lead, *(slice(k, k + s * (m - 1) + 1, s) for k, s, m in corner))]
            for corner in (
                zip(ks, self.strides, counts, strict=True)
                for ks in product(*map(range, [0] * len(counts), reach, gaps))
            )
        ]
        shape = (*operand.shape[: self.axis], *self.sizes, *counts, *operand.shape[end:])
        return xp.reshape(xp.stack(rows, axis=self.axis), shape)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        lengths = operand.shape[self.axis : self.axis + len(self.sizes)]
        back = Overlap(
            axis=self.axis,
            sizes=self.sizes,
            strides=self.strides,
            lengths=lengths,
            gaps=self.gaps,
        )
        return (gradient.apply(back, gradient),)


def _split_axes(
    xp: ArrayNamespace, operand: Array, axis: int, sizes: tuple[int, ...], counts: tuple[int, ...]
) -> Array:
    """Windows that neither overlap nor leave gaps: each axis split in two."""
    k, pairs = len(sizes), list(zip(counts, sizes, strict=True))
    covered = operand[(*(slice(None),) * axis, *(slice(0, n * m) for n, m in pairs))]
    split = [n for pair in pairs for n in pair]
    operand = xp.reshape(covered, (*operand.shape[:axis], *split, *operand.shape[axis + k :]))
    inner = [axis + 2 * j + 1 for j in range(k)]
    outer = [axis + 2 * j for j in range(k)]
    return xp.permute_dims(
        operand, (*range(axis), *inner, *outer, *range(axis + 2 * k, operand.ndim))
    )


def dilations(sizes: tuple[int, ...], gaps: tuple[int, ...]) -> tuple[int, ...]:
    """The distance between a window's elements, on each axis."""
    return gaps or (1,) * len(sizes)


def spans(sizes: tuple[int, ...], gaps: tuple[int, ...]) -> tuple[int, ...]:
    """The length from the first to the last element of a window, on each axis."""
    return tuple((s - 1) * g + 1 for s, g in zip(sizes, dilations(sizes, gaps), strict=True))


class Overlap(Axis):
    """y[.., n, .., ..] = Σ x[.., k, .., j, .., ..], gap · k + stride · j = n: windows transposed"""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    lengths: tuple[Expr | int, ...]
    gaps: tuple[int, ...] = ()

    def infer(self, operand: Type) -> Type:
        end = self.axis + 2 * len(self.sizes)
        windows = Windows(axis=0, sizes=self.sizes, strides=self.strides, gaps=self.gaps)
        if operand.shape[self.axis : end] != (*self.sizes, *windows.counts(self.lengths)):
            raise TypeError(
                f"overlap: {operand} has no windows of {self.lengths} at axis {self.axis}"
            )
        return Type(
            operand.dtype, (*operand.shape[: self.axis], *self.lengths, *operand.shape[end:])
        )

    def run(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        for k in reversed(range(len(self.sizes))):  # so that the other axes keep their places
            n, size = evaluate(self.lengths[k], env), self.axis + k
            gap = dilations(self.sizes, self.gaps)[k]
            operand = _add_overlapping(xp, operand, size, size + k + 1, n, self.strides[k], gap)
        return operand

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        windows = Windows(axis=self.axis, sizes=self.sizes, strides=self.strides, gaps=self.gaps)
        return (gradient.apply(windows, gradient),)


def _add_overlapping(
    xp: ArrayNamespace, operand: Array, size: int, count: int, length: int, stride: int, gap: int
) -> Array:
    """Add the axis `size` of elements and the axis `count` of windows up along `length` places.

    Element a·stride + r of window j is at place (a + j)·stride + r: so whole strides are added, as
    many as windows overlap, and their elements are interleaved at the end.
    """
    operand = _spread(xp, operand, size, gap)
    steps = -(-operand.shape[size] // stride)
    operand = _zero_padded(xp, operand, size, 0, steps * stride - operand.shape[size])
    m = operand.shape[count]
    places = max(-(-length // stride), m + steps - 1)
    lead = (slice(None),) * size
    parts = [
        _zero_padded(
            xp, operand[(*lead, slice(a * stride, (a + 1) * stride))], count, a, places - m - a
        )
        for a in range(steps)
    ]
    total = reduce(add, parts)  # [.., stride, .., places, ..]
    order = [k for k in range(len(total.shape)) if k != size]
    order.insert(count, size)
    total = xp.permute_dims(total, tuple(order))
    rest = total.shape[count + 1 :]
    y = xp.reshape(total, (*total.shape[: count - 1], places * stride, *rest))
    return y[(*(slice(None),) * (count - 1), slice(0, length))] if places * stride > length else y


def _spread(xp: ArrayNamespace, operand: Array, axis: int, gap: int) -> Array:
    """The elements of an axis, `gap` apart, with zeros between."""
    if gap == 1:
        return operand
    wide = xp.expand_dims(operand, axis=axis + 1)
    zeros = xp.zeros(
        (*operand.shape[: axis + 1], gap - 1, *operand.shape[axis + 1 :]), dtype=operand.dtype
    )
    shape = (*operand.shape[:axis], operand.shape[axis] * gap, *operand.shape[axis + 1 :])
    spread = xp.reshape(xp.concat((wide, zeros), axis=axis + 1), shape)
    return spread[(*(slice(None),) * axis, slice(0, shape[axis] - gap + 1))]


def _zero_padded(xp: ArrayNamespace, operand: Array, axis: int, before: int, after: int) -> Array:
    """`operand` with zeros around it along an axis."""
    if not before and not after:
        return operand
    lead, rest = operand.shape[:axis], operand.shape[axis + 1 :]
    low, high = (xp.zeros((*lead, n, *rest), dtype=operand.dtype) for n in (before, after))
    return xp.concat((low, operand, high), axis=axis)
