"""AVX2: vector instructions to VEX bytes. Masks are constants; ymm14 and ymm15 are for encodings,
where the generator reserves them: for tails, gathers and maxima.
"""

from __future__ import annotations

from collections.abc import Callable

from recurra.nest.x86 import POINTERS, POOL, SLOT, Encoder, le32

Combine = Callable[[int], bytes]
OTHER, MASK = 14, 15
YMM, XMM = 1, 0
MAP_0F, MAP_0F38, MAP_0F3A = 1, 2, 3
NOTHING = 0  # vvvv where there is no such operand


def vex(opcode: tuple[int, int, int, int], reg: int, vvvv: int, rm: int, length: int) -> bytes:
    """Register form; opcode is (map, prefix, W, byte)."""
    table, prefix, wide, byte = opcode
    return bytes(
        (
            0xC4,
            (~reg >> 3 & 1) << 7 | 1 << 6 | (~rm >> 3 & 1) << 5 | table,
            wide << 7 | (~vvvv & 15) << 3 | length << 2 | prefix,
            byte,
            0xC0 | (reg & 7) << 3 | rm & 7,
        )
    )


def vex_memory(
    opcode: tuple[int, int, int, int], reg: int, vvvv: int, base: int, disp: int, length: int,
    index: int | None = None, scale: int = 0,
) -> bytes:  # fmt: skip
    """[base + disp], or with `index` [base + index · 2^scale + disp]."""
    table, prefix, wide, byte = opcode
    x = 1 if index is None else ~index >> 3 & 1
    head = bytes(
        (
            0xC4,
            (~reg >> 3 & 1) << 7 | x << 6 | (~base >> 3 & 1) << 5 | table,
            wide << 7 | (~vvvv & 15) << 3 | length << 2 | prefix,
            byte,
        )
    )
    low, sib = base & 7, b""
    if index is not None:
        low, sib = 4, bytes((scale << 6 | (index & 7) << 3 | base & 7,))
    if disp == 0:
        return head + bytes(((reg & 7) << 3 | low,)) + sib
    if -128 <= disp < 128:
        return head + bytes((0x40 | (reg & 7) << 3 | low,)) + sib + bytes((disp & 255,))
    return head + bytes((0x80 | (reg & 7) << 3 | low,)) + sib + le32(disp)


class Avx2(Encoder):
    """256-bit registers, eight f32 or four f64."""

    def packed(self, byte: int) -> tuple[int, int, int, int]:
        return MAP_0F, self.wide, 0, byte

    def scalar(self, byte: int) -> tuple[int, int, int, int]:
        return MAP_0F, 3 if self.wide else 2, 0, byte

    def mask(self, number: int, width: int) -> bytes:
        return b""  # the constant in the pool is enough

    def _load_mask(self, mask: int) -> bytes:
        return vex_memory((MAP_0F, 0, 0, 0x10), MASK, NOTHING, POOL, SLOT * (mask - 1), YMM)

    def zero(self, register: int) -> bytes:
        return vex((MAP_0F, 0, 0, 0x57), register, register, register, YMM)  # vxorps

    def constant(self, register: int, slot: int) -> bytes:
        return vex_memory(self.packed(0x10), register, NOTHING, POOL, self.slot(slot), YMM)

    def load(self, register: int, step: int, offset: int, mask: int) -> bytes:
        if not mask:
            return vex_memory(self.packed(0x10), register, NOTHING, POINTERS[step], offset, YMM)
        opcode = (MAP_0F38, 1, 0, 0x2D if self.wide else 0x2C)  # vmaskmov
        return self._load_mask(mask) + vex_memory(
            opcode, register, MASK, POINTERS[step], offset, YMM
        )

    def store(self, register: int, step: int, offset: int, mask: int) -> bytes:
        if not mask:
            return vex_memory(self.packed(0x11), register, NOTHING, POINTERS[step], offset, YMM)
        opcode = (MAP_0F38, 1, 0, 0x2F if self.wide else 0x2E)
        return self._load_mask(mask) + vex_memory(
            opcode, register, MASK, POINTERS[step], offset, YMM
        )

    def splat(self, register: int, step: int, offset: int) -> bytes:
        opcode = (MAP_0F38, 1, 0, 0x19 if self.wide else 0x18)
        return vex_memory(opcode, register, NOTHING, POINTERS[step], offset, YMM)

    def load16(self, register: int, step: int, offset: int, mask: int, width: int) -> bytes:
        """vpmovzxwd: an element in the lower half of each lane, to be moved into the upper one"""
        if mask:
            return self.gather16(register, step, offset, width, 2)
        opcode = (MAP_0F38, 1, 0, 0x33)
        return vex_memory(opcode, register, NOTHING, POINTERS[step], offset, YMM) + self._upper(
            register
        )

    def splat16(self, register: int, step: int, offset: int) -> bytes:
        opcode = (MAP_0F38, 1, 0, 0x79)
        return vex_memory(opcode, register, NOTHING, POINTERS[step], offset, YMM) + self._upper(
            register
        )

    def gather16(self, register: int, step: int, offset: int, width: int, apart: int) -> bytes:
        """Lane by lane: gathers read four bytes, perhaps past the end."""
        code = self.zero(register)
        for lane in range(width):  # vpinsrw
            insert = (MAP_0F, 1, 0, 0xC4)
            code += vex_memory(
                insert, register, register, POINTERS[step], offset + lane * apart, XMM
            ) + bytes((lane,))
        return (
            code
            + vex((MAP_0F38, 1, 0, 0x33), register, NOTHING, register, YMM)
            + self._upper(register)
        )

    def _upper(self, register: int) -> bytes:
        """vpslld r, r, 16"""
        return vex((MAP_0F, 1, 0, 0x72), 6, register, register, YMM) + b"\x10"

    def first(self, register: int, step: int, offset: int) -> bytes:
        return vex_memory(self.scalar(0x10), register, NOTHING, POINTERS[step], offset, XMM)

    def single(self, register: int, step: int, offset: int) -> bytes:
        return vex_memory(self.scalar(0x11), register, NOTHING, POINTERS[step], offset, XMM)

    def gather(
        self, register: int, step: int, offset: int, m: int, slot: int, width: int, apart: int
    ) -> bytes:
        """The mask is used up by the instruction, so it is made anew."""
        all_ones = vex((MAP_0F, 1, 0, 0x76), MASK, MASK, MASK, YMM)  # vpcmpeqd
        mask = self._load_mask(m) if m else all_ones
        offsets = vex_memory((MAP_0F, 0, 0, 0x10), OTHER, NOTHING, POOL, self.slot(slot), YMM)
        scale = 3 if self.wide else 2
        access = vex_memory(
            (MAP_0F38, 1, self.wide, 0x92),
            register,
            MASK,
            POINTERS[step],
            offset,
            YMM,
            OTHER,
            scale,
        )
        return self.zero(register) + offsets + mask + access

    def scatter(
        self, register: int, step: int, offset: int, mask: int, slot: int, width: int, apart: int
    ) -> bytes:
        """Lane by lane: AVX2 has no such instruction."""
        code, base = b"", POINTERS[step]
        half = 16 // self.item
        for lane in range(width):
            source = register if lane < half else OTHER
            if lane == half:  # vextractf128
                code += vex((MAP_0F3A, 1, 0, 0x19), register, NOTHING, OTHER, YMM) + b"\x01"
            at = offset + lane * apart
            if not self.wide:  # vextractps
                code += vex_memory((MAP_0F3A, 1, 0, 0x17), source, NOTHING, base, at, XMM)
                code += bytes((lane % half,))
            else:  # vmovlpd, vmovhpd
                byte = 0x17 if lane % half else 0x13
                code += vex_memory((MAP_0F, 1, 0, byte), source, NOTHING, base, at, XMM)
        return code

    def fma(self, register: int, left: int, right: int, mask: int) -> bytes:
        opcode = (MAP_0F38, 1, self.wide, 0xB8)
        if not mask:
            return vex(opcode, register, left, right, YMM)
        return (
            self._copy(OTHER, register)
            + vex(opcode, OTHER, left, right, YMM)
            + self._blend(register, OTHER, mask)
        )

    def _copy(self, register: int, source: int) -> bytes:
        return vex(self.packed(0x28), register, NOTHING, source, YMM)

    def _blend(self, register: int, source: int, mask: int) -> bytes:
        """register = source in the lanes of the mask"""
        return self._load_mask(mask) + self._choose(register, source, YMM)

    def _choose(self, register: int, source: int, length: int) -> bytes:
        opcode = (MAP_0F3A, 1, 0, 0x4B if self.wide else 0x4A)
        return vex(opcode, register, register, source, length) + bytes((MASK << 4,))

    def mul(self, register: int, left: int, right: int) -> bytes:
        return vex(self.packed(0x59), register, left, right, YMM)

    def square(self, register: int) -> bytes:
        return self.mul(register, register, register)

    def add(self, register: int, source: int, mask: int) -> bytes:
        if not mask:
            return vex(self.packed(0x58), register, register, source, YMM)
        return vex(self.packed(0x58), OTHER, register, source, YMM) + self._blend(
            register, OTHER, mask
        )

    def max(self, register: int, source: int, mask: int) -> bytes:
        if not mask:
            return self._maximum(register, source, YMM)
        return (
            self._copy(OTHER, register)
            + self._maximum(OTHER, source, YMM)
            + self._blend(register, OTHER, mask)
        )

    def _maximum(self, register: int, source: int, length: int) -> bytes:
        """The larger, lane by lane, or NaN.

        vmaxps gives its last operand where one is NaN: a NaN stays in the register, and one of the
        source is copied.
        """
        larger = vex(self.packed(0x5F), register, source, register, length)
        unordered = vex(self.packed(0xC2), MASK, source, source, length) + b"\x03"
        return larger + unordered + self._choose(register, source, length)

    def sum(self, register: int, spare: int) -> bytes:
        return self._across(
            register,
            spare,
            lambda length: vex(self.packed(0x58), register, register, spare, length),
        )

    def top(self, register: int, spare: int) -> bytes:
        return self._across(register, spare, lambda length: self._maximum(register, spare, length))

    def _across(self, register: int, spare: int, combine: Combine) -> bytes:
        """Halves onto each other, until one lane is left."""
        code = vex((MAP_0F3A, 1, 0, 0x19), register, NOTHING, spare, YMM) + b"\x01" + combine(XMM)
        byte = 0x05 if self.wide else 0x04  # vpermilpd, vpermilps
        for order in (1,) if self.wide else (0b01001110, 0b10110001):
            code += vex((MAP_0F3A, 1, 0, byte), spare, NOTHING, register, XMM) + bytes((order,))
            code += combine(XMM)
        return code

    def relu(self, register: int, spare: int) -> bytes:
        return self.zero(spare) + vex(self.packed(0x5F), register, spare, register, YMM)

    def abs(self, register: int, slot: int) -> bytes:
        return vex_memory(
            self.packed(0x54), register, register, POOL, self.slot(slot), YMM
        )  # vandps

    def negate(self, register: int, slot: int) -> bytes:
        return vex_memory(
            self.packed(0x57), register, register, POOL, self.slot(slot), YMM
        )  # vxorps
