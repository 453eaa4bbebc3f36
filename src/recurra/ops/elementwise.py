"""Elementwise operators. Inside `vjp`, operands and cotangent all have the shape of the result.

Derivatives at ties are those of torch: two equal operands of maximum and minimum get half of the
cotangent each; that of abs at 0 is 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.op import Array, Elementwise, Floating, Numeric
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, is_float
from recurra.ops.source import Const


def select(condition: Any, gradient: Any) -> tuple[Any, Any]:
    """The gradient where a condition holds, and where it does not; elsewhere 0, also for NaN."""
    zero = gradient.apply(Const(value=0.0, dtype=gradient.type.dtype, shape=gradient.type.shape))
    return (
        gradient.apply(Where(), condition, gradient, zero),
        gradient.apply(Where(), condition, zero, gradient),
    )


def one_like(operand: Any) -> Const:
    """A constant 1 of the type and shape of a tensor."""
    return Const(value=1.0, dtype=operand.type.dtype, shape=operand.type.shape)


def choice_gradients(gradient: Any, second: Any, tie: Any) -> tuple[Any, Any]:
    """The cotangents of two operands of which the second was chosen, or each by half at a tie."""
    half = gradient.apply(Where(), tie, gradient * 0.5, gradient)
    a, b = select(second, half)
    return b, gradient.apply(Where(), tie, half, a)


def numeric(name: str, dtype: str) -> str:
    if dtype == "bool":
        raise TypeError(f"{name}: the operands have type bool, not a number")
    return dtype


def short_type(operand: Array) -> str:
    """The element type of an array of any library: f32."""
    return SHORT_NAME[str(operand.dtype).split(".")[-1]]


class Add(Elementwise):
    """y = a + b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left + right

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        return gradient, gradient


class Sub(Numeric):
    """y = a - b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left - right

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        return gradient, -gradient


class Mul(Elementwise):
    """y = a · b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left * right

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        return gradient * right, gradient * left


class Div(Floating):
    """y = a / b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left / right

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        return gradient / right, -(gradient * result) / right


class Pow(Elementwise):
    """y = aᵇ; of integers without its fraction, where b < 0: 0 but of 1 and -1"""

    def dtype(self, *dtypes: str) -> str:
        return numeric(self.name, super().dtype(*dtypes))

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        if is_float(short_type(left)):
            return left**right
        # only powers of 1 and -1 remain where b < 0; -b would overflow for the least b
        y = xp.pow(left, xp.where(right < 0, right & 1, right))
        return xp.where((right < 0) & (left != 1) & (left != -1), xp.zeros_like(y), y)

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        # where b = 0, or a is not positive, the gradients are the limits 0, not 0 · inf
        one = gradient.apply(one_like(gradient))
        power = right.apply(Where(), right == 0.0, one, right - 1)
        safe = left.apply(Where(), left > 0.0, left, one)
        return gradient * right * left**power, gradient * result * safe.apply(Log(), safe)


class Maximum(Elementwise):
    """y = max(a, b)"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return xp.maximum(left, right)

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        return choice_gradients(gradient, left < right, left == right)


class Minimum(Elementwise):
    """y = min(a, b)"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return xp.minimum(left, right)

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        return choice_gradients(gradient, right < left, left == right)


class Mod(Numeric):
    """y = a - (a // b) · b, with the sign of b; of integers 0 where b = 0"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return _divide(xp, left, right, operator.mod)

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        quotient = left / right
        return gradient, -(gradient * quotient.apply(Floor(), quotient))


class FloorDivide(Numeric, name="floor_divide"):
    """y = ⌊a / b⌋; of integers 0 where b = 0"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return _divide(xp, left, right, operator.floordiv)


def _divide(
    xp: ArrayNamespace, left: Array, right: Array, divide: Callable[[Array, Array], Array]
) -> Array:
    """A quotient or remainder, which is 0 for integers where b = 0."""
    if is_float(short_type(left)):
        return divide(left, right)
    zero = xp.zeros_like(right)
    y = divide(left, xp.where(right == 0, zero + 1, right))
    return xp.where(right == 0, zero, y)


class Neg(Numeric):
    """y = -x"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return -operand

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (-gradient,)


class Abs(Elementwise):
    """y = |x|; of truth values x"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return operand if short_type(operand) == "bool" else xp.abs(operand)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient * operand.apply(Sign(), operand),)


class Sign(Numeric):
    """y = -1, 0 or 1"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.sign(operand)


class Floor(Numeric):
    """y = ⌊x⌋"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.floor(operand)


class Round(Numeric):
    """y = the whole number nearest to x; of two that are as near, the even one"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.round(operand)


class Square(Elementwise):
    """y = x²"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return operand * operand

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient * (operand * 2),)


class Sqrt(Floating):
    """y = √x"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.sqrt(operand)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient / (result * 2),)


class Exp(Floating):
    """y = eˣ"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.exp(operand)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient * result,)


class Log(Floating):
    """y = ln x"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.log(operand)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient / operand,)


class HyperbolicTangent(Floating, name="tanh"):
    """y = tanh x"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.tanh(operand)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient * (1 - result.apply(Square(), result)),)


class Logistic(Floating, name="sigmoid"):
    """y = 1 / (1 + e⁻ˣ)"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return 1 / (1 + xp.exp(-operand))

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient * (result * (1 - result)),)


class Sin(Floating):
    """y = sin x"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.sin(operand)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient * operand.apply(Cos(), operand),)


class Cos(Floating):
    """y = cos x"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.cos(operand)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (-(gradient * operand.apply(Sin(), operand)),)


class Detach(Elementwise):
    """y = x, and no cotangent passes"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return operand


class WithGradient(Elementwise, name="with_gradient"):
    """y = a, and its cotangent goes to b, another way to write it: the one with the right slope"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return xp.where(right == right, left, left)  # with the axes of both

    def vjp(self, gradient: Tensor, result: Tensor, left: Tensor, right: Tensor) -> Cotangents:
        return None, gradient


class Copy(Elementwise):
    """y = x, stored separately: no rule removes it"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return operand

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient,)


def truncate(xp: ArrayNamespace, operand: Array, to: str) -> Array:
    """Convert floats to integers as XLA does: toward 0, clamped to the type's range; NaN is 0.

    NumPy and Torch leave the result of values that do not fit undefined.
    """
    name, info = NUMPY_NAME[to], np.iinfo(NUMPY_NAME[to])
    if str(operand.dtype).rpartition(".")[2] in ("float16", "bfloat16"):
        operand = xp.asarray(operand, dtype="float32")  # whose range is wider than the integers'
    fits = (operand > float(info.min) - 1) & (operand < float(info.max) + 1)
    zero, low, high = (xp.full((), n, dtype=name) for n in (0, int(info.min), int(info.max)))
    y = xp.asarray(xp.where(fits, operand, xp.zeros_like(operand)), dtype=name)
    return xp.where(fits, y, xp.where(operand < 0, low, xp.where(operand > 0, high, zero)))


class Cast(Elementwise):
    """y = x as another type; floats are cut off toward 0, and held at the ends of an integer"""

    to: str = "f32"

    def dtype(self, *dtypes: str) -> str:
        return self.to

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        to_integer = is_float(short_type(operand)) and self.to != "bool" and not is_float(self.to)
        if to_integer and not getattr(xp, "truncates", False):
            return truncate(xp, operand, self.to)
        return xp.asarray(operand, dtype=NUMPY_NAME[self.to])

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        back = operand.type.dtype
        is_smooth = is_float(back) and is_float(self.to)
        return (gradient.apply(Cast(to=back), gradient) if is_smooth else None,)


class Where(Elementwise):
    """y = a where c else b"""

    def dtype(self, *dtypes: str) -> str:
        if dtypes[0] != "bool":
            raise TypeError(f"where: the condition has type {dtypes[0]}, not bool")
        return super().dtype(*dtypes[1:])

    def apply(self, xp: ArrayNamespace, condition: Array, left: Array, right: Array) -> Array:
        return xp.where(condition, left, right)

    def vjp(
        self, gradient: Tensor, result: Tensor, condition: Tensor, left: Tensor, right: Tensor
    ) -> Cotangents:
        return None, *select(condition, gradient)


class Cond(Where):
    """y = a where c else b; work for a side that a single truth value does not choose is skipped

    So are host calls on that side: analysis/data_conditions.py.
    """


class Comparison(Elementwise, abstract=True):
    """An operator with a truth value for each pair."""

    def dtype(self, *dtypes: str) -> str:
        super().dtype(*dtypes)
        return "bool"


class Equal(Comparison):
    """y = a == b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left == right


class NotEqual(Comparison, name="not_equal"):
    """y = a != b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left != right


class Less(Comparison):
    """y = a < b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left < right


class LessEqual(Comparison, name="less_equal"):
    """y = a <= b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left <= right


class Logical(Elementwise, abstract=True):
    """An operator of truth values only."""

    def dtype(self, *dtypes: str) -> str:
        if set(dtypes) != {"bool"}:
            raise TypeError(f"{self.name}: operands have types {', '.join(dtypes)}, not bool")
        return "bool"


class And(Logical, name="logical_and"):
    """y = a and b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return xp.logical_and(left, right)


class Going(Logical):
    """y = a and b: true if a row with this point of `times[0]` has another one"""

    times: tuple[str, ...] = ()  # the dims along which such a row has as many points
    every: int = 0  # steps between two polls of it by a loop; 0: the backend's choice

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return xp.logical_and(left, right)


class Or(Logical, name="logical_or"):
    """y = a or b"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return xp.logical_or(left, right)


class Not(Logical, name="logical_not"):
    """y = not x"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return xp.logical_not(operand)
