"""RecurrentTensor: a read of an equation, with the operators of an array library.

`x` reads x at the identity; `x[b, i, t:T]` reads a range, which becomes a leading axis.
Domains are unioned when tensors meet; shapes broadcast from the right, as labels.
"""

from __future__ import annotations

from math import prod
from typing import Any

from recurra.errors import ShapeError, here
from recurra.ir import expr as ex
from recurra.ir.expr import Expr
from recurra.ir.op import LETTERS, Elementwise
from recurra.ir.types import accumulator, is_float, join
from recurra.lang import indexing as brackets
from recurra.lang.build import as_tensor, elementwise, logical, with_slope_of, zeros
from recurra.lang.dims import unwrap, wrap
from recurra.lang.matmul import matmul
from recurra.lang.opaque import OpaqueTensor
from recurra.lang.read import Read
from recurra.ops import bitwise, indexing, movement, reduction, scan, softmax
from recurra.ops import elementwise as el

__all__ = ["RecurrentTensor", "as_tensor", "elementwise", "zeros"]


def _where(cond: RecurrentTensor, a: Any, b: Any) -> RecurrentTensor:
    return elementwise(el.Where, cond, a, b)


def _given(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments one by one, or as one tuple."""
    one = sizes[0] if len(sizes) == 1 else None
    return tuple(one) if isinstance(one, (tuple, list)) else sizes


class RecurrentTensor(Read, OpaqueTensor):
    """A value at every point of `domain`; see the module for what brackets mean."""

    __hash__ = Read.__hash__

    grad: RecurrentTensor | None = None

    def __getitem__(self, key: Any) -> RecurrentTensor:
        return brackets.read(self, key if isinstance(key, tuple) else (key,))

    def __setitem__(self, key: Any, value: Any) -> None:
        brackets.define(self, key if isinstance(key, tuple) else (key,), value)

    # ---- operators

    def _elementwise(self, op: type[Elementwise], *others: Any) -> RecurrentTensor:
        return elementwise(op, self, *others)

    def __add__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Add, o)

    def __sub__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Sub, o)

    def __mul__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Mul, o)

    def __truediv__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Div, o)

    def __pow__(self, o: Any) -> RecurrentTensor:
        return self.square() if type(o) is int and o == 2 else self._elementwise(el.Pow, o)

    def __mod__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Mod, o)

    def __floordiv__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.FloorDivide, o)

    def __rfloordiv__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.FloorDivide, o, self)

    def __rmod__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Mod, o, self)

    def __radd__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Add, o, self)

    def __rsub__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Sub, o, self)

    def __rmul__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Mul, o, self)

    def __rtruediv__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Div, o, self)

    def __rpow__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Pow, o, self)

    def __neg__(self) -> RecurrentTensor:
        return self._elementwise(el.Neg)

    def __abs__(self) -> RecurrentTensor:
        return self.abs()

    def __eq__(self, o: object) -> Any:
        return self._elementwise(el.Equal, o)

    def __ne__(self, o: object) -> Any:
        return self._elementwise(el.NotEqual, o)

    def __lt__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Less, o)

    def __le__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.LessEqual, o)

    def __gt__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Less, o, self)

    def __ge__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.LessEqual, o, self)

    def __and__(self, o: Any) -> RecurrentTensor:
        return logical(el.And, bitwise.BitAnd, self, o)

    def __or__(self, o: Any) -> RecurrentTensor:
        return logical(el.Or, bitwise.BitOr, self, o)

    def __xor__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(bitwise.BitXor, o)

    def __rand__(self, o: Any) -> RecurrentTensor:
        return logical(el.And, bitwise.BitAnd, o, self)

    def __ror__(self, o: Any) -> RecurrentTensor:
        return logical(el.Or, bitwise.BitOr, o, self)

    def __rxor__(self, o: Any) -> RecurrentTensor:
        return elementwise(bitwise.BitXor, o, self)

    def __lshift__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(bitwise.ShiftLeft, o)

    def __rshift__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(bitwise.ShiftRight, o)

    def __rlshift__(self, o: Any) -> RecurrentTensor:
        return elementwise(bitwise.ShiftLeft, o, self)

    def __rrshift__(self, o: Any) -> RecurrentTensor:
        return elementwise(bitwise.ShiftRight, o, self)

    def __invert__(self) -> RecurrentTensor:
        return logical(el.Not, bitwise.BitNot, self)

    def __matmul__(self, o: Any) -> RecurrentTensor:
        """The product of matrices in the last two axes, as np.matmul; the others broadcast."""
        return matmul(self, o)

    def __rmatmul__(self, o: Any) -> RecurrentTensor:
        return matmul(o, self)

    # ---- methods

    def cast(self, dtype: str) -> RecurrentTensor:
        return self if dtype == self.dtype else self.apply(el.Cast(to=dtype), self)

    def detach(self) -> RecurrentTensor:
        """The same value; no gradient passes."""
        return self._elementwise(el.Detach)

    def exp(self) -> RecurrentTensor:
        return self._elementwise(el.Exp)

    def log(self) -> RecurrentTensor:
        return self._elementwise(el.Log)

    def tanh(self) -> RecurrentTensor:
        return self._elementwise(el.Tanh)

    def sigmoid(self) -> RecurrentTensor:
        return self._elementwise(el.Sigmoid)

    def relu(self) -> RecurrentTensor:
        """max(x, 0); the slope at 0 is 0."""
        return with_slope_of(elementwise(el.Maximum, self, 0), lambda: _where(self > 0, self, 0))

    def sqrt(self) -> RecurrentTensor:
        return self._elementwise(el.Sqrt)

    def square(self) -> RecurrentTensor:
        return self._elementwise(el.Square)

    def abs(self) -> RecurrentTensor:
        return self._elementwise(el.Abs)

    def sin(self) -> RecurrentTensor:
        return self._elementwise(el.Sin)

    def cos(self) -> RecurrentTensor:
        return self._elementwise(el.Cos)

    def floor(self) -> RecurrentTensor:
        return self._elementwise(el.Floor)

    def clip(self, lo: Any, hi: Any) -> RecurrentTensor:
        """min(max(x, lo), hi); the slope at both ends is that of x."""
        raised = elementwise(el.Maximum, self, lo)
        return with_slope_of(
            elementwise(el.Minimum, raised, hi),
            lambda: _where(raised > hi, hi, _where(self < lo, lo, self)),
        )

    def _axes(self, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
        rank = len(self.shape)
        every: Any = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        for a in every:
            if not isinstance(a, int):
                raise ShapeError(
                    f"{a} is no axis",
                    facts=f"the tensor is {self!r}: axes are counted, dims are read over",
                    hint=f"x[0:{str(a).upper()}].sum(axis=0) for a dim, sum(axis=0) for an axis",
                    loc=here(),
                )
            if not -rank <= a < rank:
                raise ShapeError(
                    f"there is no axis {a}",
                    facts=f"the tensor is {self!r}",
                    hint="a range of a dim becomes an axis: x[t:T], x[0:T]"
                    if not rank
                    else f"its axes are {-rank}..{rank - 1}",
                    loc=here(),
                )
        return tuple(sorted(a % rank for a in every))

    def _reduce(self, op: type[reduction.Reduction], axis: Any) -> RecurrentTensor:
        return self.apply(op(axes=self._axes(axis)), self)

    def sum(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        """Σ along axes; of truth values and integers below 32 bits it is i32."""
        return self.cast(accumulator(self.dtype))._reduce(reduction.Sum, axis)

    def mean(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        """The sum over the count, in f32 at least; f32 for integers, else of the operand's type."""
        count: Any = 1
        for a in self._axes(axis):
            count = ex.mul(count, self.shape[a])
        x = self.cast(join(self.dtype, "f32"))
        mean = x.sum(axis) / as_tensor(wrap(count), x.dtype)
        return mean.cast(self.dtype) if is_float(self.dtype) else mean

    def max(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.Max, axis)

    def min(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.Min, axis)

    def any(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.Any_, axis)

    def all(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.All, axis)

    def argmax(self, axis: int = -1) -> RecurrentTensor:
        return self._reduce(reduction.ArgMax, axis)

    def argmin(self, axis: int = -1) -> RecurrentTensor:
        """The first position of the smallest along an axis."""
        turned = -self if is_float(self.dtype) else ~self  # of any integer, also the smallest
        return turned.argmax(axis)

    def argsort(self, axis: int = -1) -> RecurrentTensor:
        """Positions in ascending order; of equals the first comes first. x.take(i) is sorted."""
        return self.apply(indexing.ArgSort(axis=self._axes(axis)[0]), self)

    def cumsum(self, axis: int = 0) -> RecurrentTensor:
        """Running sums along an axis, of the type that `sum` has."""
        x = self.cast(accumulator(self.dtype))
        return x.apply(scan.CumSum(axis=self._axes(axis)[0]), x)

    def discounted_sum(self, gamma: float, axis: int = 0) -> RecurrentTensor:
        """Σₖ γᵏ x[k] along an axis."""
        return self.apply(scan.DiscountedSum(gamma=float(gamma), axis=self._axes(axis)[0]), self)

    def softmax(self, axis: int = -1) -> RecurrentTensor:
        return self.apply(softmax.Softmax(axis=self._axes(axis)[0]), self)

    def log_softmax(self, axis: int = -1) -> RecurrentTensor:
        return self.apply(softmax.LogSoftmax(axis=self._axes(axis)[0]), self)

    def flip(self, axis: int = 0) -> RecurrentTensor:
        return self.apply(movement.Flip(axis=self._axes(axis)[0]), self)

    def transpose(self, *order: Any) -> RecurrentTensor:
        """The axes in an order, `2, 0, 1` or `(2, 0, 1)`; reversed without one."""
        axes = _given(order) or tuple(range(len(self.shape)))[::-1]
        return self.apply(movement.Transpose(order=axes), self)

    @property
    def T(self) -> RecurrentTensor:
        return self.transpose()

    def reshape(self, *shape: Any) -> RecurrentTensor:
        """Row-major, as `2, 3` or `(2, 3)`; one -1 stands for what is left of a constant size."""
        shape = _given(shape)
        sizes = [unwrap(n) for n in shape]
        if -1 in sizes:
            known = prod(n for n in sizes if n != -1)
            total = prod(self.shape)  # pyright: ignore[reportArgumentType]
            if not isinstance(total, int) or known == 0 or total % known:
                raise ShapeError(
                    f"-1 has no value in {shape}", facts=f"this is {self!r}", loc=here()
                )
            sizes[sizes.index(-1)] = total // known
        return self.apply(movement.Reshape(shape=tuple(sizes)), self)

    def index(self, at: Any, axis: int = 0) -> RecurrentTensor:
        """Element `at` (a number or an index expression) of an axis, proved to be on it."""
        at, (axis,) = unwrap(at), self._axes(axis)
        if type(at) is not int and not isinstance(at, Expr):
            raise ShapeError(
                f"{at!r} is no position on axis {axis}",
                facts=f"the tensor is {self!r}",
                hint="for positions by data use .take(i)",
                loc=here(),
            )
        if type(at) is int and at < 0:
            at = self.shape[axis] + at
        return self.apply(indexing.Pick(axis=axis, at_=at), self)

    def cut(self, lo: Any, hi: Any, axis: int = 0) -> RecurrentTensor:
        """Elements lo..hi-1 of an axis, of any tensor (brackets index the dims first)."""
        (axis,), lo = self._axes(axis), unwrap(lo)
        return self.apply(movement.Cut(axis=axis, start=lo, size=unwrap(hi) - lo), self)

    def take(self, i: Any, axis: int = 0) -> RecurrentTensor:
        """Elements along an axis by data; the axes of `i` take its place.

        A position that is not on the axis takes the nearest element: -1 the first one.
        """
        (axis,), i = self._axes(axis), as_tensor(i)
        full = LETTERS[: len(self.shape)]
        new = LETTERS[len(full) : len(full) + len(i.shape)]
        labels = f"{full},{new}->{full[:axis]}{new}{full[axis + 1 :]}"
        return self.apply(indexing.Take(labels=labels, axis=full[axis]), self, i)

    def one_hot(self, size: int, dtype: str = "f32") -> RecurrentTensor:
        return self.apply(indexing.OneHot(size=size, axis=len(self.shape), to=dtype), self)

    def expand(self, size: Any, axis: int = 0) -> RecurrentTensor:
        """Copies along a new axis of (possibly symbolic) size."""
        full = LETTERS[: len(self.shape) + 1]
        axis %= len(full)
        kept = full[:axis] + full[axis + 1 :]
        return self.apply(movement.Expand(labels=f"{kept}->{full}", sizes=(unwrap(size),)), self)

    def broadcast_to(self, shape: tuple[Expr | int, ...]) -> RecurrentTensor:
        lead = len(shape) - len(self.shape)
        if lead < 0 or self.shape != shape[lead:]:
            raise ShapeError(
                f"{self.shape} does not fit {shape}", facts=f"this is {self!r}", loc=here()
            )
        if not lead:
            return self
        full = LETTERS[: len(shape)]
        return self.apply(
            movement.Expand(labels=f"{full[lead:]}->{full}", sizes=shape[:lead]), self
        )

    def reduce_to(self, have: str, want: str) -> RecurrentTensor:
        """Sums the labels of `have` that `want` lacks, and orders the rest as in `want`."""
        axes = tuple(k for k, c in enumerate(have) if c not in want)
        out = self.apply(reduction.Sum(axes=axes), self) if axes else self
        left = "".join(c for c in have if c in want)
        if left == want:
            return out
        return out.apply(movement.Transpose(order=tuple(left.index(c) for c in want)), out)

    def backward(self, wrt: Any = None, *, through_updates: bool = False) -> None:
        """Gradients of (the sum over its domain of) this tensor; each of `wrt` gets a `.grad`."""
        from recurra.lang.autodiff import backward

        backward(self, wrt, through_updates)
