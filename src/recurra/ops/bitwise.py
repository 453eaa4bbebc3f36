"""Integers bit by bit."""

from __future__ import annotations

from recurra.ir.array_protocols import ArrayNamespace
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

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left & right


class BitOr(Bitwise, name="bitwise_or"):
    """y = the bits that a or b has"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left | right


class BitXor(Bitwise, name="bitwise_xor"):
    """y = the bits that one of a and b has"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        return left ^ right


class BitNot(Bitwise, name="bitwise_invert"):
    """y = the bits that x lacks"""

    def apply(self, xp: ArrayNamespace, operand: Array) -> Array:
        return ~operand


class Shift(Bitwise, abstract=True):
    """The bits of a number moved; by less than none or more than it has, they are all lost."""

    def dtype(self, *dtypes: str) -> str:
        return numeric(self.name, super().dtype(*dtypes))

    def outside(self, xp: ArrayNamespace, left: Array, right: Array) -> tuple[Array, Array]:
        """Mark shifts that lose all bits; the distance of the others."""
        width = 8 * WIDTH[short_type(left)]
        lost = (right < 0) | (right >= width)
        return lost, xp.where(lost, xp.zeros_like(right), right)


class ShiftLeft(Shift, name="bitwise_left_shift"):
    """y = a · 2ᵇ, without the bits that leave its type"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        lost, by = self.outside(xp, left, right)
        return xp.where(lost, xp.zeros_like(left), left << by)


class ShiftRight(Shift, name="bitwise_right_shift"):
    """y = ⌊a / 2ᵇ⌋"""

    def apply(self, xp: ArrayNamespace, left: Array, right: Array) -> Array:
        lost, by = self.outside(xp, left, right)
        return xp.where(
            lost, xp.where(left < 0, xp.zeros_like(left) - 1, xp.zeros_like(left)), left >> by
        )
