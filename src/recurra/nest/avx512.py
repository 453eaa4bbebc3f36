"""AVX-512: vector instructions to EVEX bytes. Mask k is register k; k7 is free for encodings."""

from __future__ import annotations

from collections.abc import Callable

from recurra.nest.x86 import POINTERS, POOL, Encoder, le32

Combine = Callable[[int], bytes]

INDEX = 31  # offsets of a gather's lanes; the generator leaves this register alone
ZMM, YMM, XMM = 2, 1, 0
MAP_0F, MAP_0F38, MAP_0F3A = 1, 2, 3
SCRATCH = 7  # a mask register


def evex(
    opcode: tuple[int, int, int, int], reg: int, vvvv: int, rm: int, length: int, index: int, z: int
) -> bytes:
    """Register form; opcode is (map, prefix, W, byte)."""
    table, prefix, wide, byte = opcode
    return bytes(
        (
            0x62,
            (~reg >> 3 & 1) << 7 | (~rm >> 4 & 1) << 6 | (~rm >> 3 & 1) << 5
            | (~reg >> 4 & 1) << 4 | table,
            wide << 7 | (~vvvv & 15) << 3 | 4 | prefix,
            z << 7 | length << 5 | (~vvvv >> 4 & 1) << 3 | index,
            byte,
            0xC0 | (reg & 7) << 3 | rm & 7,
        )
    )  # fmt: skip


def evex_memory(
    opcode: tuple[int, int, int, int], reg: int, base: int, disp: int, unit: int, length: int,
    position: int = 0, z: int = 0, vvvv: int = 0, index: int | None = None, scale: int = 0,
) -> bytes:  # fmt: skip
    """[base + disp], or with `index` [base + index · 2^scale + disp]. A displacement that is a
    multiple of `unit` takes one byte, where it is small.
    """
    table, prefix, wide, byte = opcode
    x, v = (1, ~vvvv >> 4 & 1) if index is None else (~index >> 3 & 1, ~index >> 4 & 1)
    head = bytes(
        (
            0x62,
            (~reg >> 3 & 1) << 7 | x << 6 | (~base >> 3 & 1) << 5 | (~reg >> 4 & 1) << 4 | table,
            wide << 7 | (~vvvv & 15) << 3 | 4 | prefix,
            z << 7 | length << 5 | v << 3 | position,
            byte,
        )
    )
    low, sib = base & 7, b""
    if index is not None:
        low, sib = 4, bytes((scale << 6 | (index & 7) << 3 | base & 7,))
    short, rest = divmod(disp, unit)
    if disp == 0:
        return head + bytes(((reg & 7) << 3 | low,)) + sib
    if rest == 0 and -128 <= short < 128:
        return head + bytes((0x40 | (reg & 7) << 3 | low,)) + sib + bytes((short & 255,))
    return head + bytes((0x80 | (reg & 7) << 3 | low,)) + sib + le32(disp)


class Avx512(Encoder):
    """512-bit registers, sixteen f32 or eight f64."""

    def packed(self, byte: int) -> tuple[int, int, int, int]:
        return MAP_0F, self.wide, self.wide, byte

    def scalar(self, byte: int) -> tuple[int, int, int, int]:
        return MAP_0F, 3 if self.wide else 2, self.wide, byte

    def mask(self, number: int, width: int) -> bytes:
        """mov eax, bits; kmovw k, eax"""
        return b"\xb8" + le32((1 << width) - 1) + bytes((0xC5, 0xF8, 0x92, 0xC0 | number << 3))

    def zero(self, register: int) -> bytes:
        return evex((MAP_0F, 1, 0, 0xEF), register, register, register, ZMM, 0, 0)  # vpxord

    def constant(self, register: int, slot: int) -> bytes:
        return evex_memory(self.packed(0x10), register, POOL, self.slot(slot), 64, ZMM)

    def load(self, register: int, step: int, offset: int, mask: int) -> bytes:
        return evex_memory(
            self.packed(0x10), register, POINTERS[step], offset, 64, ZMM, mask, int(mask > 0)
        )

    def store(self, register: int, step: int, offset: int, mask: int) -> bytes:
        return evex_memory(self.packed(0x11), register, POINTERS[step], offset, 64, ZMM, mask)

    def splat(self, register: int, step: int, offset: int) -> bytes:
        opcode = (MAP_0F38, 1, self.wide, 0x19 if self.wide else 0x18)
        return evex_memory(opcode, register, POINTERS[step], offset, self.item, ZMM)

    def load16(self, register: int, step: int, offset: int, mask: int, width: int) -> bytes:
        """vpmovzxwd: an element in the lower half of each lane, to be moved into the upper one"""
        opcode = (MAP_0F38, 1, 0, 0x33)
        lower = evex_memory(opcode, register, POINTERS[step], offset, 32, ZMM, mask, int(mask > 0))
        return lower + self._upper(register)

    def splat16(self, register: int, step: int, offset: int) -> bytes:
        return evex_memory(
            (MAP_0F38, 1, 0, 0x79), register, POINTERS[step], offset, 2, ZMM
        ) + self._upper(register)

    def gather16(self, register: int, step: int, offset: int, width: int, apart: int) -> bytes:
        """Lane by lane: gathers read four bytes, perhaps past the end."""
        code = self.zero(register) + (self.zero(INDEX) if width > 8 else b"")
        for lane in range(width):  # vpinsrw
            half = register if lane < 8 else INDEX
            insert = (MAP_0F, 1, 0, 0xC4)
            code += evex_memory(
                insert, half, POINTERS[step], offset + lane * apart, 2, XMM, vvvv=half
            )
            code += bytes((lane % 8,))
        if width > 8:  # vinserti32x4
            code += evex((MAP_0F3A, 1, 0, 0x38), register, register, INDEX, YMM, 0, 0) + b"\x01"
        return (
            code
            + evex((MAP_0F38, 1, 0, 0x33), register, 0, register, ZMM, 0, 0)
            + self._upper(register)
        )

    def _upper(self, register: int) -> bytes:
        """vpslld r, r, 16"""
        return evex((MAP_0F, 1, 0, 0x72), 6, register, register, ZMM, 0, 0) + b"\x10"

    def first(self, register: int, step: int, offset: int) -> bytes:
        return evex_memory(self.scalar(0x10), register, POINTERS[step], offset, self.item, XMM)

    def single(self, register: int, step: int, offset: int) -> bytes:
        return evex_memory(self.scalar(0x11), register, POINTERS[step], offset, self.item, XMM)

    def gather(
        self, register: int, step: int, offset: int, mask: int, slot: int, width: int, apart: int
    ) -> bytes:
        return self.zero(register) + self._apart(0x92, register, step, offset, mask, slot)

    def scatter(
        self, register: int, step: int, offset: int, mask: int, slot: int, width: int, apart: int
    ) -> bytes:
        return self._apart(0xA2, register, step, offset, mask, slot)

    def _apart(
        self, byte: int, register: int, step: int, offset: int, mask: int, slot: int
    ) -> bytes:
        """The mask is used up by the instruction, so it gets a copy."""
        copy = bytes((0xC5, 0xF8, 0x90, 0xC0 | SCRATCH << 3 | mask))  # kmovw k7, m
        everything = bytes((0xC5, 0xC4, 0x46, 0xFF))  # kxnorw k7, k7, k7
        offsets = evex_memory((MAP_0F, 0, 0, 0x10), INDEX, POOL, self.slot(slot), 64, ZMM)
        opcode = (MAP_0F38, 1, self.wide, byte)
        scale = 3 if self.wide else 2
        access = evex_memory(
            opcode,
            register,
            POINTERS[step],
            offset,
            self.item,
            ZMM,
            SCRATCH,
            0,
            index=INDEX,
            scale=scale,
        )
        return offsets + (copy if mask else everything) + access

    def fma(self, register: int, left: int, right: int, mask: int) -> bytes:
        return evex((MAP_0F38, 1, self.wide, 0xB8), register, left, right, ZMM, mask, 0)

    def mul(self, register: int, left: int, right: int) -> bytes:
        return evex(self.packed(0x59), register, left, right, ZMM, 0, 0)

    def square(self, register: int) -> bytes:
        return self.mul(register, register, register)

    def add(self, register: int, source: int, mask: int) -> bytes:
        return evex(self.packed(0x58), register, register, source, ZMM, mask, 0)

    def max(self, register: int, source: int, mask: int) -> bytes:
        return self._maximum(register, source, ZMM, mask)

    def _maximum(self, register: int, source: int, length: int, mask: int = 0) -> bytes:
        """The larger, lane by lane, or NaN.

        vmaxps gives its last operand where one is NaN: a NaN stays in the register, and one of the
        source is copied.
        """
        unordered = evex(self.packed(0xC2), SCRATCH, source, source, length, mask, 0) + b"\x03"
        larger = evex(self.packed(0x5F), register, source, register, length, mask, 0)
        return unordered + larger + evex(self.packed(0x28), register, 0, source, length, SCRATCH, 0)

    def sum(self, register: int, spare: int) -> bytes:
        return self._across(
            register,
            spare,
            lambda length: evex(self.packed(0x58), register, register, spare, length, 0, 0),
        )

    def top(self, register: int, spare: int) -> bytes:
        return self._across(register, spare, lambda length: self._maximum(register, spare, length))

    def _across(self, register: int, spare: int, combine: Combine) -> bytes:
        """Halves onto each other, until one lane is left."""
        upper_half = (
            evex((MAP_0F3A, 1, 1, 0x1B), register, 0, spare, ZMM, 0, 0) + b"\x01"
        )  # vextractf64x4
        quarter = (
            evex((MAP_0F3A, 1, 0, 0x19), register, 0, spare, YMM, 0, 0) + b"\x01"
        )  # vextractf32x4
        code = upper_half + combine(YMM) + quarter + combine(XMM)
        byte = 0x05 if self.wide else 0x04  # vpermilpd, vpermilps
        for order in (1,) if self.wide else (0b01001110, 0b10110001):
            code += evex((MAP_0F3A, 1, self.wide, byte), spare, 0, register, XMM, 0, 0) + bytes(
                (order,)
            )
            code += combine(XMM)
        return code

    def relu(self, register: int, spare: int) -> bytes:
        return self.zero(spare) + evex(self.packed(0x5F), register, spare, register, ZMM, 0, 0)

    def abs(self, register: int, slot: int) -> bytes:
        return self._bits(0xDB, register, slot)

    def negate(self, register: int, slot: int) -> bytes:
        return self._bits(0xEF, register, slot)

    def _bits(self, byte: int, register: int, slot: int) -> bytes:
        """r = r op [pool], as integers"""
        opcode = (MAP_0F, 1, self.wide, byte)
        return evex_memory(opcode, register, POOL, self.slot(slot), 64, ZMM, vvvv=register)
