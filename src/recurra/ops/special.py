"""The error function, which no array namespace has: by rational functions (Cephes).

|x| < 1       erf x = x T(x²) / U(x²)
1 <= |x| < 8  erfc x = e^(-x²) P(x) / Q(x)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import pi
from typing import Any

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.op import Array, Floating
from recurra.ops.elementwise import Exp, Neg, Square

_P = (
    *(2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0),
    *(4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2),
    *(9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2),
)
_Q = (
    *(1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2),
    *(9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3),
    *(1.65666309194161350182e3, 5.57535340817727675546e2),
)
_T = (
    *(9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3),
    *(7.00332514112805075473e3, 5.55923013010394962768e4),
)
_U = (
    *(1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3),
    *(2.26290000613890934246e4, 4.92673942608635921086e4),
)


def _polynomial(operand: Array, factors: Sequence[float]) -> Array:
    return reduce(lambda y, c: y * operand + c, factors[1:], factors[0])


def _parts(xp: ArrayNamespace, operand: Array) -> tuple[Array, Array, Array]:
    """erf x where |x| < 1, erfc |x| elsewhere, and |x| < 1; in f32 at least, as f16 overflows."""
    is_wide = str(operand.dtype).endswith(("64", "t32"))
    wide = operand if is_wide else xp.asarray(operand, dtype="float32")
    size = xp.abs(wide)
    small, large = xp.minimum(size, 1.0), xp.minimum(xp.maximum(size, 1.0), 8.0)
    near = xp.sign(wide) * small * _polynomial(small * small, _T) / _polynomial(small * small, _U)
    far = xp.exp(-large * large) * _polynomial(large, _P) / _polynomial(large, _Q)
    return near, far, size < 1.0


class Erf(Floating):
    """y = 2/√π ∫₀ˣ e^(-u²) du"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        near, far, inside = _parts(xp, operand)
        y = xp.where(inside, near, xp.sign(operand) * (1.0 - far))
        return xp.asarray(y, dtype=operand.dtype)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (gradient * _slope(operand),)


class Erfc(Floating):
    """y = 1 - erf x, accurate also where it is small"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        near, far, inside = _parts(xp, operand)
        y = xp.where(inside, 1.0 - near, xp.where(operand > 0.0, far, 2.0 - far))
        return xp.asarray(y, dtype=operand.dtype)

    def vjp(self, gradient: Tensor, result: Tensor, operand: Tensor) -> Cotangents:
        return (-(gradient * _slope(operand)),)


def _slope(operand: Any) -> Any:
    """2/√π e^(-x²)"""
    squares = operand.apply(Square(), operand)
    return operand.apply(Exp(), operand.apply(Neg(), squares)) * (2 / pi**0.5)
