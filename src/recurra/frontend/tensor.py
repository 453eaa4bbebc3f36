"""RecurrentTensor: a read of an equation, with the operators of an array library.

`x` reads x at the identity; `x[b, i, t:T]` reads a range, which becomes a leading axis.
Domains are unioned when tensors meet; shapes broadcast from the right, as labels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import pi
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from recurra.analysis.argument_checks import check_arguments
from recurra.errors import RecurraError
from recurra.frontend import autodiff, definitions, ordering, reductions, reshaping
from recurra.frontend import indexing as brackets
from recurra.frontend.dtype_objects import Dtype, dtype_name
from recurra.frontend.index_arguments import BareIndex
from recurra.frontend.matmul import matmul
from recurra.frontend.operator_table import operator
from recurra.frontend.refused_conversions import OpaqueTensor, operator_of
from recurra.frontend.rounding import rounded
from recurra.frontend.tensor_base import Read, union
from recurra.frontend.tensor_conversion import (
    comparison,
    convert,
    logical,
    pointwise,
    with_slope_of,
)
from recurra.ir.op import Elementwise, Op
from recurra.ir.types import is_float
from recurra.ops import bitwise, movement, reduction, special
from recurra.ops import elementwise as el

P = ParamSpec("P")
R = TypeVar("R")


def as_tensor(x: object, dtype: str | Dtype | None = None) -> RecurrentTensor:
    """Convert a number, an index expression or an array to a tensor; a tensor is returned as is."""
    return convert(RecurrentTensor, x, dtype)


def elementwise(op: type[Elementwise], *xs: object) -> RecurrentTensor:
    """Apply an elementwise op, with operands broadcast from the right and promoted to one type."""
    return pointwise(RecurrentTensor, op, *xs)


def _method(
    function: Callable[Concatenate[RecurrentTensor, P], R],
) -> Callable[Concatenate[RecurrentTensor, P], R]:
    """Give a function of tensors, for the type checker, the type of a method of this class."""
    return function


Unary = Callable[["RecurrentTensor"], "RecurrentTensor"]
Binary = Callable[["RecurrentTensor", object], "RecurrentTensor"]


def _unary(op: type[Elementwise], says: str, ours: str, numpy: str = "", torch: str = "") -> Unary:
    """A method that applies an elementwise op, with a docstring and a row in the operator table."""

    def method(x: Any) -> RecurrentTensor:
        return elementwise(op, x)

    method.__doc__ = says
    return operator(ours, numpy, torch)(method)


def _binary(
    op: type[Elementwise], says: str, ours: str, numpy: str, torch: str
) -> tuple[Binary, Binary]:
    """The method of a binary operator, as `_unary`, and the reflected one, such as __radd__."""

    def method(x: Any, other: object) -> RecurrentTensor:
        return elementwise(op, x, other)

    method.__doc__ = says
    return operator(ours, numpy, torch)(method), lambda x, other: elementwise(op, other, x)


def _where(cond: RecurrentTensor, left: object, right: object) -> RecurrentTensor:
    return elementwise(el.Where, cond, left, right)


class RecurrentTensor(Read, OpaqueTensor):
    """A tensor with a value at every point of `domain`; brackets read other points and ranges."""

    __hash__ = Read.__hash__

    grad: RecurrentTensor | None = None

    @property
    def kind(self) -> type[RecurrentTensor]:
        """The class of the results of operators."""
        return RecurrentTensor

    def apply(self, op: Op, *args: Read) -> RecurrentTensor:
        """Add an equation over the union of the operands' domains, and return it as a tensor."""
        domain = union(self.builder, args, op)
        node = self.builder.emit(op, tuple(a.ref for a in args), domain, op.name)
        return RecurrentTensor(self.builder, self.graph.read(node.name))

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *operands: object, **_: object
    ) -> object:
        return operator_of(ufunc, method)(*map(as_tensor, operands))

    def __getitem__(self: RecurrentTensor, key: object) -> RecurrentTensor:
        return brackets.read(self, key if isinstance(key, tuple) else (key,))

    def __setitem__(self: RecurrentTensor, key: object, value: object) -> None:
        definitions.define(self, key if isinstance(key, tuple) else (key,), value)

    # ---- operators

    __add__, __radd__ = _binary(el.Add, "The sum.", "x + y", "np.add", "torch.add")
    __sub__, __rsub__ = _binary(el.Sub, "The difference.", "x - y", "np.subtract", "torch.sub")
    __mul__, __rmul__ = _binary(el.Mul, "The product.", "x * y", "np.multiply", "torch.mul")
    __truediv__, __rtruediv__ = _binary(
        el.Div, "The quotient, a float: integers become f32.", "x / y", "np.divide", "torch.div"
    )

    @operator("x ** y", "np.power", "torch.pow")
    def __pow__(self, other: object) -> RecurrentTensor:
        """The power; for integers, truncated to an integer."""
        return (
            self.square() if type(other) is int and other == 2 else elementwise(el.Pow, self, other)
        )

    __mod__, __rmod__ = _binary(
        el.Mod,
        "The remainder of `x // y`, with the sign of y; for integers 0 where y is 0.",
        "x % y",
        "np.mod",
        "torch.remainder",
    )
    __floordiv__, __rfloordiv__ = _binary(
        el.FloorDivide,
        "The quotient, rounded down; for integers 0 where y is 0.",
        "x // y",
        "np.floor_divide",
        "torch.floor_divide",
    )

    def __rpow__(self, other: object) -> RecurrentTensor:
        return elementwise(el.Pow, other, self)

    __neg__ = _unary(el.Neg, "The negative.", "-x", "np.negative", "torch.neg")

    def __abs__(self) -> RecurrentTensor:
        return self.abs()

    def __round__(self, decimals: int = 0) -> RecurrentTensor:
        return self.round(decimals)

    def __floor__(self) -> RecurrentTensor:
        return self.floor()

    @operator("x == y", "np.equal", "torch.eq")
    def __eq__(  # type: ignore[override]
        self, other: object
    ) -> RecurrentTensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Are they equal?"""
        return comparison(RecurrentTensor, el.Equal, self, other)

    @operator("x != y", "np.not_equal", "torch.ne")
    def __ne__(  # type: ignore[override]
        self, other: object
    ) -> RecurrentTensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do they differ?"""
        return comparison(RecurrentTensor, el.NotEqual, self, other)

    @operator("x < y", "np.less", "torch.lt")
    def __lt__(self, other: object) -> RecurrentTensor:
        """Is x less?"""
        return comparison(RecurrentTensor, el.Less, self, other)

    @operator("x <= y", "np.less_equal", "torch.le")
    def __le__(self, other: object) -> RecurrentTensor:
        """Is x less or equal?"""
        return comparison(RecurrentTensor, el.LessEqual, self, other)

    @operator("x > y", "np.greater", "torch.gt")
    def __gt__(self, other: object) -> RecurrentTensor:
        """Is x greater?"""
        return comparison(RecurrentTensor, el.Less, other, self)

    @operator("x >= y", "np.greater_equal", "torch.ge")
    def __ge__(self, other: object) -> RecurrentTensor:
        """Is x greater or equal?"""
        return comparison(RecurrentTensor, el.LessEqual, other, self)

    @operator("x & y", "np.bitwise_and", "torch.bitwise_and")
    def __and__(self, other: object) -> RecurrentTensor:
        """The logical and of truth values, or the bitwise and of integers."""
        return logical(RecurrentTensor, el.And, bitwise.BitAnd, self, other)

    @operator("x | y", "np.bitwise_or", "torch.bitwise_or")
    def __or__(self, other: object) -> RecurrentTensor:
        """The logical or of truth values, or the bitwise or of integers."""
        return logical(RecurrentTensor, el.Or, bitwise.BitOr, self, other)

    __xor__, __rxor__ = _binary(
        bitwise.BitXor,
        "The exclusive or of truth values, or bitwise of integers.",
        "x ^ y",
        "np.bitwise_xor",
        "torch.bitwise_xor",
    )

    def __rand__(self, other: object) -> RecurrentTensor:
        return logical(RecurrentTensor, el.And, bitwise.BitAnd, other, self)

    def __ror__(self, other: object) -> RecurrentTensor:
        return logical(RecurrentTensor, el.Or, bitwise.BitOr, other, self)

    __lshift__, __rlshift__ = _binary(
        bitwise.ShiftLeft,
        "The bits of an integer shifted left by y.",
        "x << y",
        "np.left_shift",
        "torch.bitwise_left_shift",
    )
    __rshift__, __rrshift__ = _binary(
        bitwise.ShiftRight,
        "The bits of an integer shifted right by y; the sign is kept.",
        "x >> y",
        "np.right_shift",
        "torch.bitwise_right_shift",
    )

    @operator("~x", "np.invert", "torch.bitwise_not")
    def __invert__(self) -> RecurrentTensor:
        """The logical not of truth values, or the bitwise complement of integers."""
        return logical(RecurrentTensor, el.Not, bitwise.BitNot, self)

    @operator("x @ y", "np.matmul", "torch.matmul")
    def __matmul__(self, other: object) -> RecurrentTensor:
        """The matrix product over the last two axes, as np.matmul; the others broadcast."""
        return matmul(RecurrentTensor, self, other)

    def __rmatmul__(self, other: object) -> RecurrentTensor:
        return matmul(RecurrentTensor, other, self)

    # ---- methods

    @operator('x.cast("f32")', "np.astype", "torch.Tensor.to")
    def cast(self, dtype: str | Dtype) -> RecurrentTensor:
        """Convert to another element type; floats are truncated to integers."""
        to = dtype_name(dtype)
        return self if to == self.dtype else self.apply(el.Cast(to=to), self)

    detach = _unary(
        el.Detach,
        "The same value, through which no gradient passes.",
        "x.detach()",
        "",
        "torch.Tensor.detach",
    )
    exp = _unary(el.Exp, "eˣ", "x.exp()", "np.exp", "torch.exp")
    log = _unary(el.Log, "ln x", "x.log()", "np.log", "torch.log")
    tanh = _unary(el.HyperbolicTangent, "tanh x", "x.tanh()", "np.tanh", "torch.tanh")
    sigmoid = _unary(
        el.Logistic, "1 / (1 + e⁻ˣ)", "x.sigmoid()", "scipy.special.expit", "torch.sigmoid"
    )

    @operator("x.relu()", "", "torch.relu")
    def relu(self) -> RecurrentTensor:
        """max(x, 0); the slope at 0 is 0."""
        return with_slope_of(elementwise(el.Maximum, self, 0), lambda: _where(self > 0, self, 0))

    sqrt = _unary(el.Sqrt, "√x", "x.sqrt()", "np.sqrt", "torch.sqrt")
    square = _unary(el.Square, "x²", "x.square()", "np.square", "torch.square")
    abs = _unary(el.Abs, "|x|; the slope at 0 is 0.", "x.abs()", "np.abs", "torch.abs")
    sin = _unary(el.Sin, "sin x", "x.sin()", "np.sin", "torch.sin")
    cos = _unary(el.Cos, "cos x", "x.cos()", "np.cos", "torch.cos")

    @operator("x.floor()", "np.floor", "torch.floor")
    def floor(self) -> RecurrentTensor:
        """The largest integer not above x."""
        return elementwise(el.Floor, self) if is_float(self.dtype) else self

    @operator("x.round(decimals=0)", "np.round", "torch.round")
    def round(self: RecurrentTensor, decimals: int | BareIndex = 0) -> RecurrentTensor:
        """Round to this many decimals; ties go to the even digit."""
        return rounded(self, decimals)

    erf = _unary(special.Erf, "2/√π ∫₀ˣ e^(-u²) du", "x.erf()", "scipy.special.erf", "torch.erf")

    @operator("x.silu()", "", "torch.nn.functional.silu")
    def silu(self) -> RecurrentTensor:
        """x / (1 + e⁻ˣ)"""
        return self * self.sigmoid()

    @operator("x.gelu()", "", "torch.nn.functional.gelu")
    def gelu(self, approximate: Literal["none", "tanh"] = "none") -> RecurrentTensor:
        """x Φ(x), Φ the standard normal CDF; "tanh" approximates it, as in GPT-2."""
        if approximate == "none":
            return self * ((self * 2**-0.5).erf() + 1.0) * 0.5
        if approximate != "tanh":
            raise RecurraError.at_user_line(
                f"gelu cannot be approximated by {approximate!r}",
                facts='it is "none", the exact one, or "tanh"',
                hint='write x.gelu("tanh")',
            )
        inner = (self + self * self.square() * 0.044715) * (2 / pi) ** 0.5
        return self * (inner.tanh() + 1.0) * 0.5

    @operator("x.clip(lo=0.0, hi=1.0)", "np.clip", "torch.clamp")
    def clip(self, lo: object = None, hi: object = None) -> RecurrentTensor:
        """min(max(x, lo), hi), with the slope of x at both ends; either end may be omitted."""
        raised = self if lo is None else elementwise(el.Maximum, self, lo)

        def sloped() -> RecurrentTensor:
            over = None if hi is None else raised > hi
            x = self if lo is None else _where(self < lo, lo, self)
            return x if over is None else _where(over, hi, x)

        return with_slope_of(raised if hi is None else elementwise(el.Minimum, raised, hi), sloped)

    sum = _method(reductions.sum)
    prod = _method(reductions.prod)
    mean = _method(reductions.mean)
    var = _method(reductions.var)
    std = _method(reductions.std)
    norm = _method(reductions.norm)
    max = _method(reductions.max)
    min = _method(reductions.min)
    logsumexp = _method(reductions.logsumexp)
    any = _method(reductions.any)
    all = _method(reductions.all)
    argmax = _method(reductions.argmax)
    argmin = _method(reductions.argmin)

    sort = _method(ordering.sort)
    argsort = _method(ordering.argsort)
    topk = _method(ordering.topk)
    cumsum = _method(ordering.cumsum)
    cumprod = _method(ordering.cumprod)
    cummax = _method(ordering.cummax)
    discounted_sum = _method(ordering.discounted_sum)
    softmax = _method(ordering.softmax)
    log_softmax = _method(ordering.log_softmax)
    take = _method(ordering.take)
    gather = _method(ordering.gather)
    scatter = _method(ordering.scatter)
    one_hot = _method(ordering.one_hot)

    transpose = _method(reshaping.transpose)
    permute = _method(reshaping.permute)
    reshape = _method(reshaping.reshape)
    squeeze = _method(reshaping.squeeze)
    expand = _method(reshaping.expand)
    broadcast_to = _method(reshaping.broadcast_to)
    flip = _method(reshaping.flip)
    roll = _method(ordering.roll)
    repeat = _method(reshaping.repeat)
    tile = _method(reshaping.tile)
    index = _method(reshaping.index)
    cut = _method(reshaping.cut)
    tril = _method(reshaping.tril)
    triu = _method(reshaping.triu)
    outer = _method(reshaping.outer)

    @property
    def T(self) -> RecurrentTensor:
        return self.transpose()

    def reduce_to(self, have: str, want: str) -> RecurrentTensor:
        """Sum over the labels of `have` that `want` lacks, and order the axes as in `want`."""
        axes = tuple(k for k, c in enumerate(have) if c not in want)
        out = self.apply(reduction.Sum(axes=axes), self) if axes else self
        left = "".join(c for c in have if c in want)
        if left == want:
            return out
        return out.apply(movement.Transpose(order=tuple(left.index(c) for c in want)), out)

    @partial(
        check_arguments,
        name="loss.backward",
        hint="write x[0:T].sum().backward(wrt=[x]) for the gradients of x; without wrt they are "
        "those of all parameters",
    )
    def backward(
        self: RecurrentTensor, wrt: object = None, *, through_updates: bool = False
    ) -> None:
        """Compute gradients of this scalar, summed over its domain, as `.grad` of each of `wrt`."""
        autodiff.backward(self, wrt, through_updates)
