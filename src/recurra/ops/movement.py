"""Ops that move elements and compute nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any, Self

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate, lin, mul
from recurra.ir.op import Array, Axis, Op, Symbolic, align, fresh_label, label_sizes
from recurra.ir.types import Type


class Expand(Symbolic):
    """y = x copied along new axes; labels "a->ba", one size for each new label in order"""

    labels: str
    sizes: tuple[Expr | int, ...]

    def infer(self, operand: Type) -> Type:
        src, out = self.labels.split("->")
        sizes = label_sizes("expand", (src,), (operand,))
        if set(src) - set(out) or len(out) - len(src) != len(self.sizes):
            raise TypeError(
                f"expand: {self.labels} does not add {len(self.sizes)} axes to {operand}"
            )
        new = iter(self.sizes)
        return Type(operand.dtype, tuple(sizes[c] if c in sizes else next(new) for c in out))

    def eval_at(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        src, out = self.labels.split("->")
        new = iter(self.sizes)
        shape = tuple(
            operand.shape[src.index(c)] if c in src else evaluate(next(new), env) for c in out
        )
        return xp.broadcast_to(align(xp, operand, src, out), shape)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        src, out = self.labels.split("->")
        return (gradient.reduce_to(out, src),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        src, out = self.labels.split("->")
        c = fresh_label(src + out)
        labels = f"{src}{c}->{out}{c}" if last else f"{c}{src}->{c}{out}"
        return replace(self, labels=labels)


class Transpose(Op):
    """y[.., k, ..] = x[.., order[k], ..]"""

    order: tuple[int, ...]

    def infer(self, operand: Type) -> Type:
        if sorted(self.order) != list(range(operand.rank)):
            raise TypeError(f"transpose: {self.order} is no permutation of the axes of {operand}")
        return Type(operand.dtype, tuple(operand.shape[a] for a in self.order))

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.permute_dims(operand, self.order)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        back = tuple(self.order.index(k) for k in range(len(self.order)))
        return (gradient.apply(Transpose(order=back), gradient),)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        order = (*self.order, len(self.order)) if last else (0, *(a + 1 for a in self.order))
        return replace(self, order=order)


class Reshape(Symbolic):
    """y = x, row-major, as another shape"""

    shape: tuple[Expr | int, ...]

    def infer(self, operand: Type) -> Type:
        gap = lin([(reduce(mul, operand.shape, 1), 1), (reduce(mul, self.shape, 1), -1)])
        if isinstance(gap, int) and gap:
            raise TypeError(
                f"reshape: {operand} has not the size of {Type(operand.dtype, self.shape)}"
            )
        return Type(operand.dtype, self.shape)

    def eval_at(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        return xp.reshape(operand, tuple(evaluate(s, env) for s in self.shape))

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient.apply(Reshape(shape=operand.shape), gradient),)

    def batch_size(self, size: Expr | int, last: bool) -> Self:
        return replace(self, shape=(*self.shape, size) if last else (size, *self.shape))


def _resize(type_: Type, axis: int, size: Expr | int) -> Type:
    """The type with another length of an axis."""
    return Type(type_.dtype, (*type_.shape[:axis], size, *type_.shape[axis + 1 :]))


class Cut(Axis):
    """y = x[start : start + size] along an axis; `start` may name dims, a static `size` does not"""

    start: Expr | int
    size: Expr | int

    def infer(self, operand: Type) -> Type:
        super().infer(operand)
        left = lin([(operand.shape[self.axis], 1), (self.start, -1), (self.size, -1)])
        ends = () if self.size == 0 else (self.start, self.size, left)
        if any(isinstance(n, int) and n < 0 for n in ends):
            raise TypeError(
                f"cut: {operand} has no {self.start}:{self.start + self.size} on axis {self.axis}"
            )
        return _resize(operand, self.axis, self.size)

    def run(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        start, size = evaluate(self.start, env, xp), evaluate(self.size, env)
        if isinstance(start, int):
            inside = not size or (start >= 0 and start + size <= operand.shape[self.axis])
            assert inside, f"cut {start}:{start + size} of {operand.shape[self.axis]}"
            return operand[(*(slice(None),) * self.axis, slice(start, start + size))]
        return xp.take(operand, start + xp.arange(size), axis=self.axis)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        after = operand.shape[self.axis] - self.size - self.start
        return (gradient.apply(Pad(axis=self.axis, before=self.start, after=after), gradient),)


class Pad(Axis):
    """y = x with `before` and `after` copies of `value` around it along an axis"""

    before: Expr | int
    after: Expr | int
    value: float = 0.0

    def infer(self, operand: Type) -> Type:
        super().infer(operand)
        return _resize(operand, self.axis, operand.shape[self.axis] + self.before + self.after)

    def run(self, xp: ArrayNamespace, env: Env, operand: Array) -> Array:
        ends = (evaluate(self.before, env), evaluate(self.after, env))
        widths = tuple(ends if k == self.axis else (0, 0) for k in range(len(operand.shape)))
        return xp.pad(operand, widths, constant_values=self.value)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        cut = Cut(axis=self.axis, start=self.before, size=operand.shape[self.axis])
        return (gradient.apply(cut, gradient),)


class Concat(Axis):
    """y = the operands one after another along an axis

    If `materialized`, it is computed as a whole before a part of it is read.
    """

    materialized: bool = False

    def infer(self, *xs: Type) -> Type:  # pyright: ignore[reportIncompatibleMethodOverride]
        for x in xs:
            if x.rank != xs[0].rank:
                raise TypeError(f"concat: {x} and {xs[0]} have not as many axes")
            if _resize(x, self.axis, 0) != _resize(xs[0], self.axis, 0):
                raise TypeError(f"concat: {x} and {xs[0]} differ off axis {self.axis}")
        total = sum((x.shape[self.axis] for x in xs[1:]), xs[0].shape[self.axis])
        return _resize(xs[0], self.axis, total)

    def eval(self, xp: ArrayNamespace, *xs: Array) -> Array:
        y = xp.concat(xs, axis=self.axis)
        own = getattr(xp, "materialize", None) if self.materialized else None
        return y if own is None else own(y)

    def vjp(self, gradient: Tensor, result: Tensor, *xs: Tensor) -> Cotangents:
        out, start = list[Any](), 0
        for x in xs:
            size = x.shape[self.axis]
            out.append(gradient.apply(Cut(axis=self.axis, start=start, size=size), gradient))
            start = start + size
        return tuple(out)


class Flip(Axis):
    """y = x reversed along an axis"""

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.flip(operand, axis=self.axis)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient.apply(self, gradient),)
