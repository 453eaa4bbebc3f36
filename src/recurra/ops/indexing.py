"""Indexing inside a tensor: by a dim (`pick`, `place`), by data (`take`, `searchsorted`, ..)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import Array, Axis, Op, add_label, align, label_sizes
from recurra.ir.types import NUMPY_NAME, Type, is_float
from recurra.ops.elementwise import Mul
from recurra.ops.permutation import repeat
from recurra.ops.source import Value


class Pick(Axis):
    """y = x[.., at, ..]; with `zero`, 0 where `at` falls outside, else it is proved to be inside"""

    at_: Expr | int
    zero: bool = False

    def infer(self, operand: Type) -> Type:
        super().infer(operand)
        return Type(operand.dtype, tuple(s for k, s in enumerate(operand.shape) if k != self.axis))

    def run(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        at, n = evaluate(self.at_, env, xp), operand.shape[self.axis]
        if not n or (isinstance(at, int) and not 0 <= at < n):
            shape = tuple(s for k, s in enumerate(operand.shape) if k != self.axis)
            return xp.zeros(shape, dtype=operand.dtype)
        if isinstance(at, int):
            return operand[(*(slice(None),) * self.axis, at)]
        y = xp.take(operand, xp.clip(at, 0, n - 1), axis=self.axis)
        return xp.where((at >= 0) & (at < n), y, xp.zeros_like(y))

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        place = Place(axis=self.axis, at_=self.at_, size=operand.shape[self.axis])
        return (gradient.apply(place, gradient),)


class Place(Axis):
    """y = zeros, but x at position `at` of a new axis: the transpose of pick"""

    at_: Expr | int
    size: Expr | int

    def infer(self, operand: Type) -> Type:
        return Type(
            operand.dtype, (*operand.shape[: self.axis], self.size, *operand.shape[self.axis :])
        )

    def run(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        at, n = evaluate(self.at_, env, xp), evaluate(self.size, env)
        shape = tuple(n if k == self.axis else 1 for k in range(len(operand.shape) + 1))
        hit = xp.reshape(xp.arange(n) == at, shape)
        operand = xp.expand_dims(operand, axis=self.axis)
        return xp.where(hit, operand, xp.zeros_like(operand))

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient.apply(Pick(axis=self.axis, at_=self.at_, zero=True), gradient),)


class ByLabel(Op, abstract=True):
    """An op that looks into x along the label `axis`, at the other operand; shared labels match."""

    labels: str
    axis: str

    def parts(self) -> tuple[str, str, str]:
        ins, out = self.labels.split("->")
        x, i = ins.split(",")
        return x, i, out

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        lx, li, out = self.parts()
        return replace(self, labels=add_label((lx, li), out, flags, last))


class Take(ByLabel):
    """y = x indexed by i along the label `axis`; other shared labels go together

    labels "ba,b->b", axis "a": y[b] = x[b, i[b]].  labels "vd,t->td", axis "v": rows of a table.
    A position before the first element reads the first one, a position past the last the last one.
    """

    def infer(self, source: Type, places: Type) -> Type:
        lx, li, out = self.parts()
        if is_float(places.dtype) or places.dtype == "bool":
            raise TypeError(f"take: the index has type {places.dtype}, not an integer")
        sizes = label_sizes("take", (lx, li), (source, places))
        if self.axis not in lx or set(out) != (set(lx) | set(li)) - {self.axis}:
            raise TypeError(f"take: {self.labels} does not index {self.axis!r} away")
        return Type(source.dtype, tuple(sizes[c] for c in out))

    def eval(self, xp: ArrayNamespace, operand: Array, indices: Array) -> Array:
        lx, li, out = self.parts()
        k = lx.index(self.axis)
        if not operand.shape[k]:  # nothing to take; readers of it do not run
            sizes = dict(zip(lx + li, (*operand.shape, *indices.shape), strict=True))
            return xp.zeros(tuple(sizes[c] for c in out), dtype=operand.dtype)
        if not set(lx) & set(li):
            y = xp.reshape(
                xp.take(operand, xp.reshape(indices, (-1,)), axis=k, mode="clip"),
                (*operand.shape[:k], *indices.shape, *operand.shape[k + 1 :]),
            )
            axes = lx[:k] + li + lx[k + 1 :]
            return y if axes == out else xp.permute_dims(y, tuple(axes.index(c) for c in out))
        wide = out + self.axis
        indices = xp.clip(wide_positions(xp, indices), 0, operand.shape[k] - 1)
        rows = _full_rank(xp, xp.expand_dims(align(xp, indices, li, out), axis=-1), len(wide))
        full = _full_rank(xp, align(xp, operand, lx, wide), len(wide))
        return xp.take_along_axis(full, rows, axis=-1)[..., 0]

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor, indices: Tensor) -> Cotangents:
        lx, li, out = self.parts()
        n = operand.shape[lx.index(self.axis)]
        at = nearest(indices, n)
        hot = at.apply(OneHot(size=n, axis=len(li), to=operand.type.dtype), at)
        wide = out + self.axis
        both = gradient.apply(Mul(labels=f"{out},{li}{self.axis}->{wide}"), gradient, hot)
        return both.reduce_to(wide, lx), None


def nearest(indices: Any, size: Expr | int) -> Any:
    """The nearest positions on an axis, in a type that can number every element."""
    indices = indices if indices.dtype == "i64" else indices.cast("i32")
    last: Any = size - 1
    if not isinstance(last, int):
        last = indices.apply(Value(expr=last, dtype=indices.dtype))
    return indices.clip(0, last)


class SearchSorted(ByLabel):
    """y = how many elements of x, which ascends along the label `axis`, lie below v; `equal`: or at

    Found by halves, as in np.searchsorted; "ba,bc->bc": each row is searched for values of its own.
    """

    equal: bool = False

    def infer(self, source: Type, values: Type) -> Type:
        lx, lv, out = self.parts()
        if source.dtype != values.dtype:
            raise TypeError(f"searchsorted: operands have types {source.dtype}, {values.dtype}")
        sizes = label_sizes("searchsorted", (lx, lv), (source, values))
        if self.axis not in lx or set(out) != (set(lx) | set(lv)) - {self.axis}:
            raise TypeError(f"searchsorted: {self.labels} does not search along {self.axis!r}")
        return Type("i32", tuple(sizes[c] for c in out))

    def eval(self, xp: ArrayNamespace, operand: Array, values: Array) -> Array:
        lx, lv, out = self.parts()
        sizes = dict(zip(lx + lv, (*operand.shape, *values.shape), strict=True))
        n, values = sizes[self.axis], align(xp, values, lv, out)
        found = xp.zeros(tuple(sizes[c] for c in out), dtype="int32")
        take = Take(labels=f"{lx},{out}->{out}", axis=self.axis)

        def halve(k: Any, state: tuple[Array, Any]) -> tuple[Array, Any]:
            found, step = state
            at = found + step
            element = take.eval(xp, operand, xp.minimum(at, xp.full((), n, dtype="int32")) - 1)
            below = element <= values if self.equal else element < values
            return xp.where((at <= n) & below, at, found), step // 2

        steps = n.bit_length()
        return repeat(xp, steps, halve, (found, 1 << max(steps - 1, 0)))[0]


def wide_positions(xp: ArrayNamespace, indices: Array) -> Array:
    """Positions in a type that can number every element."""
    return indices if str(indices.dtype).endswith("64") else xp.asarray(indices, dtype="int32")


def _full_rank(xp: ArrayNamespace, operand: Array, rank: int) -> Array:
    return xp.reshape(operand, (*(1,) * (rank - len(operand.shape)), *operand.shape))


class ArgSort(Axis):
    """y = the positions along an axis in ascending order of x; of equals the first comes first"""

    def infer(self, operand: Type) -> Type:
        return Type("i32", super().infer(operand).shape)

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        if "bfloat16" in str(operand.dtype):  # NumPy sorts it wrongly with NaN
            operand = xp.asarray(operand, dtype="float32")
        return xp.asarray(xp.argsort(operand, axis=self.axis, stable=True), dtype="int32")


class OneHot(Op):
    """y[.., k, ..] = 1 where i == k, on a new axis"""

    size: Expr | int
    axis: int
    to: str = "f32"

    def infer(self, type_: Type) -> Type:
        if is_float(type_.dtype):
            raise TypeError(f"one_hot: the positions have type {type_.dtype}, not an integer")
        return Type(self.to, (*type_.shape[: self.axis], self.size, *type_.shape[self.axis :]))

    def run(self, xp: ArrayNamespace, env: Env, indices: Array) -> Array:
        n = evaluate(self.size, env)
        shape = tuple(n if k == self.axis else 1 for k in range(len(indices.shape) + 1))
        indices = wide_positions(xp, indices)
        hit = xp.expand_dims(indices, axis=self.axis) == xp.reshape(
            xp.arange(n, dtype=indices.dtype), shape
        )
        return xp.asarray(hit, dtype=NUMPY_NAME[self.to])

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axis=self.axis + 1)
