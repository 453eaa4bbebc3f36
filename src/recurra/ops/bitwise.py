"""Bitwise operators of integers and truth values."""

from __future__ import annotations

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.op import Array, Elementwise
from recurra.ir.types import WIDTH, is_float
from recurra.ops.elementwise import numeric, short_type


class Bitwise(Elementwise, abstract=True):
    """An operator that works bit by bit, on integers or truth values."""

    def dtype(self, *dtypes: str) -> str:
        common = super().dtype(*dtypes)
        if is_float(common):
            raise TypeError(f"{self.name}: the operands have type {common}, not an integer")
        return common


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
    """A shift of bits; a negative distance, or one beyond the width, loses all of them."""

    def dtype(self, *dtypes: str) -> str:
        return numeric(self.name, super().dtype(*dtypes))

    def outside(self, xp: ArrayNamespace, left: Array, right: Array) -> tuple[Array, Array]:
        """The shifts that lose all bits, and the distances with 0 for these."""
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
        zero = xp.zeros_like(left)
        return xp.where(lost, xp.where(left < 0, zero - 1, zero), left >> by)
