"""Integers bit by bit."""

from __future__ import annotations

from recurra.ir.arrays import ArrayNamespace
from recurra.ir.op import Array, Elementwise
from recurra.ir.types import WIDTH, is_float
from recurra.ops.elementwise import numeric, short_type


class Bitwise(Elementwise, abstract=True):
    """Bit by bit, of integers or truth values."""

    def dtype(self, *dtypes: str) -> str:
        found = super().dtype(*dtypes)
        if is_float(found):
            raise TypeError(f"{self.name}: the operands have type {found}, not an integer")
        return found


class BitAnd(Bitwise, name="bitwise_and"):
    """y = the bits that a and b have"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a & b


class BitOr(Bitwise, name="bitwise_or"):
    """y = the bits that a or b has"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a | b


class BitXor(Bitwise, name="bitwise_xor"):
    """y = the bits that one of a and b has"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        return a ^ b


class BitNot(Bitwise, name="bitwise_invert"):
    """y = the bits that x lacks"""

    def apply(self, xp: ArrayNamespace, x: Array) -> Array:
        return ~x


class Shift(Bitwise, abstract=True):
    """The bits of a number moved; by less than none or more than it has, they are all lost."""

    def dtype(self, *dtypes: str) -> str:
        return numeric(self.name, super().dtype(*dtypes))

    def outside(self, xp: ArrayNamespace, a: Array, b: Array) -> tuple[Array, Array]:
        """Where all bits are lost, and how far to move them elsewhere."""
        width = 8 * WIDTH[short_type(a)]
        lost = (b < 0) | (b >= width)
        return lost, xp.where(lost, xp.zeros_like(b), b)


class ShiftLeft(Shift, name="bitwise_left_shift"):
    """y = a · 2ᵇ, without the bits that leave its type"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        lost, by = self.outside(xp, a, b)
        return xp.where(lost, xp.zeros_like(a), a << by)


class ShiftRight(Shift, name="bitwise_right_shift"):
    """y = ⌊a / 2ᵇ⌋"""

    def apply(self, xp: ArrayNamespace, a: Array, b: Array) -> Array:
        lost, by = self.outside(xp, a, b)
        return xp.where(lost, xp.where(a < 0, xp.zeros_like(a) - 1, xp.zeros_like(a)), a >> by)
