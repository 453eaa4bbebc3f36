"""Pointwise arithmetic. Inside `vjp`, operands and cotangent all have the shape of the result.

Slopes at ties are those of torch: two equal operands of maximum and minimum have half of the
cotangent each, abs has 0 at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from recurra.ir.arrays import ArrayNamespace, Cotangents, Tensor
from recurra.ir.op import Array, Elementwise, Floating, Numeric
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, is_float
from recurra.ops.source import Const


def select(c: Any, g: Any) -> tuple[Any, Any]:
    """`g` where `c` holds, and `g` where it does not; zero elsewhere, whatever `g` is."""
    zero = g.apply(Const(value=0.0, dtype=g.type.dtype, shape=g.type.shape))
    return g.apply(Where(), c, g, zero), g.apply(Where(), c, zero, g)


def one_like(x: Any) -> Const:
    """1 in the type and the shape of a tensor."""
    return Const(value=1.0, dtype=x.type.dtype, shape=x.type.shape)


def tied(g: Any, second: Any, tie: Any) -> tuple[Any, Any]:
    """The cotangents of two of which the second, or each with a half, was chosen."""
    half = g.apply(Where(), tie, g * 0.5, g)
    a, b = select(second, half)
    return b, g.apply(Where(), tie, half, a)


def numeric(name: str, dtype: str) -> str:
    if dtype == "bool":
        raise TypeError(f"{name}: the operands have type bool, not a number")
    return dtype


def short_type(x: Array) -> str:
    """The element type of an array of any library: f32."""
    return SHORT_NAME[str(x.dtype).split(".")[-1]]


class Add(Elementwise):
    """y = a + b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a + b

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        return g, g


class Sub(Numeric):
    """y = a - b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a - b

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        return g, -g


class Mul(Elementwise):
    """y = a · b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a * b

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        return g * b, g * a


class Div(Floating):
    """y = a / b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a / b

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        return g / b, -(g * y) / b


class Pow(Elementwise):
    """y = aᵇ; of integers without its fraction, where b < 0: 0 but of 1 and -1"""

    def dtype(self, *dtypes: str) -> str:
        return numeric(self.name, super().dtype(*dtypes))

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        if is_float(short_type(a)):
            return a**b
        y = xp.pow(a, xp.where(b < 0, b & 1, b))  # of 1 and -1; the least b has no -b
        return xp.where((b < 0) & (a != 1) & (a != -1), xp.zeros_like(y), y)

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        # where b = 0, or a is not positive, the limits 0 are wanted, not 0 · inf
        one = g.apply(one_like(g))
        power = b.apply(Where(), b == 0.0, one, b - 1)
        safe = a.apply(Where(), a > 0.0, a, one)
        return g * b * a**power, g * y * safe.apply(Log(), safe)


class Maximum(Elementwise):
    """y = max(a, b)"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return xp.maximum(a, b)

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        return tied(g, a < b, a == b)


class Minimum(Elementwise):
    """y = min(a, b)"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return xp.minimum(a, b)

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        return tied(g, b < a, a == b)


class Mod(Numeric):
    """y = a - (a // b) · b, with the sign of b; of integers 0 where b = 0"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a % b if is_float(short_type(a)) else _divided(xp, a, b, lambda x, y: x % y)

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        turns = a / b
        return g, -(g * turns.apply(Floor(), turns))


class FloorDivide(Numeric, name="floor_divide"):
    """y = ⌊a / b⌋; of integers 0 where b = 0"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a // b if is_float(short_type(a)) else _divided(xp, a, b, lambda x, y: x // y)


def _divided(
    xp: ArrayNamespace, a: Array, b: Array, divide: Callable[[Array, Array], Array]
) -> Array:
    """A quotient or rest of integers, 0 where b = 0."""
    zero = xp.zeros_like(b)
    y = divide(a, xp.where(b == 0, zero + 1, b))
    return xp.where(b == 0, zero, y)


class Neg(Numeric):
    """y = -x"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return -x

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (-g,)


class Abs(Elementwise):
    """y = |x|; of truth values x"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return x if short_type(x) == "bool" else xp.abs(x)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g * x.apply(Sign(), x),)


class Sign(Numeric):
    """y = -1, 0 or 1"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.sign(x)


class Floor(Numeric):
    """y = ⌊x⌋"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.floor(x)


class Round(Numeric):
    """y = the whole number nearest to x; of two that are as near, the even one"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.round(x)


class Square(Elementwise):
    """y = x²"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return x * x

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g * (x * 2),)


class Sqrt(Floating):
    """y = √x"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.sqrt(x)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g / (y * 2),)


class Exp(Floating):
    """y = eˣ"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.exp(x)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g * y,)


class Log(Floating):
    """y = ln x"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.log(x)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g / x,)


class HyperbolicTangent(Floating, name="tanh"):
    """y = tanh x"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.tanh(x)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g * (1 - y.apply(Square(), y)),)


class Logistic(Floating, name="sigmoid"):
    """y = 1 / (1 + e⁻ˣ)"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return 1 / (1 + xp.exp(-x))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g * (y * (1 - y)),)


class Sin(Floating):
    """y = sin x"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.sin(x)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g * x.apply(Cos(), x),)


class Cos(Floating):
    """y = cos x"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.cos(x)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (-(g * x.apply(Sin(), x)),)


class Detach(Elementwise):
    """y = x, and no cotangent passes"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return x


class WithGradient(Elementwise, name="with_gradient"):
    """y = a, and its cotangent goes to b, another way to write it: the one with the right slope"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return xp.where(b == b, a, a)  # with the axes of both

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        return None, g


class Copy(Elementwise):
    """y = x, in a place of its own: no law takes it away"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return x

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return (g,)


def truncated(xp: ArrayNamespace, x: Array, to: str) -> Array:
    """Floats as integers: cut off toward 0, held at the ends of the type; NaN is 0.

    That is what XLA does; NumPy and Torch leave open what becomes of what does not fit.
    """
    name, info = NUMPY_NAME[to], np.iinfo(NUMPY_NAME[to])
    if str(x.dtype).rpartition(".")[2] in ("float16", "bfloat16"):
        x = xp.asarray(x, dtype="float32")  # which has numbers beyond the ends
    fits = (x > float(info.min) - 1) & (x < float(info.max) + 1)
    zero, low, high = (xp.full((), n, dtype=name) for n in (0, int(info.min), int(info.max)))
    y = xp.asarray(xp.where(fits, x, xp.zeros_like(x)), dtype=name)
    return xp.where(fits, y, xp.where(x < 0, low, xp.where(x > 0, high, zero)))


class Cast(Elementwise):
    """y = x as another type; floats are cut off toward 0, and held at the ends of an integer"""

    to: str = "f32"

    def dtype(self, *dtypes: str) -> str:
        return self.to

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        have = str(x.dtype).rpartition(".")[2]
        whole = is_float(SHORT_NAME[have]) and self.to != "bool" and not is_float(self.to)
        if whole and not getattr(xp, "truncates", False):
            return truncated(xp, x, self.to)
        return xp.asarray(x, dtype=NUMPY_NAME[self.to])

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        back = x.type.dtype
        return (g.apply(Cast(to=back), g) if is_float(back) and is_float(self.to) else None,)


class Where(Elementwise):
    """y = a where c else b"""

    def dtype(self, *dtypes: str) -> str:
        if dtypes[0] != "bool":
            raise TypeError(f"where: the condition has type {dtypes[0]}, not bool")
        return super().dtype(*dtypes[1:])

    def apply(self, xp: ArrayNamespace, c: Array, a: Array, b: Array) -> Array:
        return xp.where(c, a, b)

    def vjp(self, g: Tensor, y: Tensor, c: Tensor, a: Tensor, b: Tensor) -> Cotangents:
        return None, *select(c, g)


class Cond(Where):
    """y = a where c else b; work for the side that one truth value does not choose is left out

    See analysis/data_conditions.py: a host call on that side is not made.
    """


class Comparison(Elementwise, abstract=True):
    """A truth value for each pair."""

    def dtype(self, *dtypes: str) -> str:
        super().dtype(*dtypes)
        return "bool"


class Equal(Comparison):
    """y = a == b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a == b


class NotEqual(Comparison, name="not_equal"):
    """y = a != b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a != b


class Less(Comparison):
    """y = a < b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a < b


class LessEqual(Comparison, name="less_equal"):
    """y = a <= b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a <= b


class Logical(Elementwise, abstract=True):
    """Of truth values only."""

    def dtype(self, *dtypes: str) -> str:
        if set(dtypes) != {"bool"}:
            raise TypeError(f"{self.name}: operands have types {', '.join(dtypes)}, not bool")
        return "bool"


class And(Logical, name="logical_and"):
    """y = a and b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return xp.logical_and(a, b)


class Going(Logical):
    """y = a and b: has a row that has this point of `times[0]` another one; no other op says so"""

    times: tuple[str, ...] = ()  # every dim of which such a row has as many points
    every: int = 0  # steps after which a loop asks for it; 0: as is best where it runs

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return xp.logical_and(a, b)


class Or(Logical, name="logical_or"):
    """y = a or b"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return xp.logical_or(a, b)


class Not(Logical, name="logical_not"):
    """y = not x"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return xp.logical_not(x)
