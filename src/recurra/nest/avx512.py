"""AVX-512: vector instructions to EVEX bytes. Mask k is register k; k7 is free for encodings."""

from __future__ import annotations

from collections.abc import Callable

from recurra.nest.x86 import (
    MAP_0F,
    MAP_0F3A,
    MAP_0F38,
    POINTERS,
    POOL,
    SLOT,
    YMM,
    ZMM,
    Encoder,
    Opcode,
    le32,
    memory_operand,
)

INDEX = 31  # offsets of a gather's lanes; the generator leaves this register alone
SCRATCH = 7  # a mask register


class Avx512(Encoder):
    """512-bit registers, sixteen f32 or eight f64."""

    vector_wide = True
    other = INDEX

    def registers(
        self, opcode: Opcode, reg: int, vvvv: int, rm: int, length: int = ZMM, mask: int = 0
    ) -> bytes:
        table, prefix, wide, byte = opcode
        return bytes(
            (
                0x62,
                (~reg >> 3 & 1) << 7 | (~rm >> 4 & 1) << 6 | (~rm >> 3 & 1) << 5
                | (~reg >> 4 & 1) << 4 | table,
                wide << 7 | (~vvvv & 15) << 3 | 4 | prefix,
                length << 5 | (~vvvv >> 4 & 1) << 3 | mask,
                byte,
                0xC0 | (reg & 7) << 3 | rm & 7,
            )
        )  # fmt: skip

    def memory(
        self, opcode: Opcode, reg: int, base: int, disp: int, length: int = ZMM,
        *, unit: int = SLOT, vvvv: int = 0, mask: int = 0, zeroing: bool = False,
        index: int | None = None, scale: int = 0,
    ) -> bytes:  # fmt: skip
        table, prefix, wide, byte = opcode
        x, v = (1, ~vvvv >> 4 & 1) if index is None else (~index >> 3 & 1, ~index >> 4 & 1)
        head = bytes(
            (
                0x62,
                (~reg >> 3 & 1) << 7 | x << 6 | (~base >> 3 & 1) << 5 | (~reg >> 4 & 1) << 4
                | table,
                wide << 7 | (~vvvv & 15) << 3 | 4 | prefix,
                zeroing << 7 | length << 5 | v << 3 | mask,
                byte,
            )
        )  # fmt: skip
        return head + memory_operand(reg, base, disp, unit, index, scale)

    def mask(self, number: int, width: int) -> bytes:
        """mov eax, bits; kmovw k, eax"""
        return b"\xb8" + le32((1 << width) - 1) + bytes((0xC5, 0xF8, 0x92, 0xC0 | number << 3))

    def zero(self, register: int) -> bytes:
        return self.registers((MAP_0F, 1, 0, 0xEF), register, register, register)  # vpxord

    def load(self, register: int, tensor: int, offset: int, mask: int) -> bytes:
        base, zeroing = POINTERS[tensor], mask > 0
        return self.memory(self.packed(0x10), register, base, offset, mask=mask, zeroing=zeroing)

    def store(self, register: int, tensor: int, offset: int, mask: int) -> bytes:
        return self.memory(self.packed(0x11), register, POINTERS[tensor], offset, mask=mask)

    def load16(self, register: int, tensor: int, offset: int, mask: int, width: int) -> bytes:
        """vpmovzxwd: an element in the lower half of each lane, to be moved into the upper one"""
        lower = self.memory(
            (MAP_0F38, 1, 0, 0x33), register, POINTERS[tensor], offset,
            unit=32, mask=mask, zeroing=mask > 0,
        )  # fmt: skip
        return lower + self.upper(register)

    def gather(
        self, register: int, tensor: int, offset: int, mask: int, slot: int, width: int, stride: int
    ) -> bytes:
        return self.zero(register) + self._indexed(0x92, register, tensor, offset, mask, slot)

    def scatter(
        self, register: int, tensor: int, offset: int, mask: int, slot: int, width: int, stride: int
    ) -> bytes:
        return self._indexed(0xA2, register, tensor, offset, mask, slot)

    def _indexed(
        self, byte: int, register: int, tensor: int, offset: int, mask: int, slot: int
    ) -> bytes:
        """The instruction clears the mask, so it gets a copy."""
        copy = bytes((0xC5, 0xF8, 0x90, 0xC0 | SCRATCH << 3 | mask))  # kmovw k7, m
        everything = bytes((0xC5, 0xC4, 0x46, 0xFF))  # kxnorw k7, k7, k7
        offsets = self.memory((MAP_0F, 0, 0, 0x10), INDEX, POOL, self.slot(slot))
        access = self.memory(
            (MAP_0F38, 1, self.wide, byte), register, POINTERS[tensor], offset,
            unit=self.item, mask=SCRATCH, index=INDEX, scale=3 if self.wide else 2,
        )  # fmt: skip
        return offsets + (copy if mask else everything) + access

    def fma(self, register: int, left: int, right: int, mask: int) -> bytes:
        return self.registers((MAP_0F38, 1, self.wide, 0xB8), register, left, right, ZMM, mask)

    def add(self, register: int, source: int, mask: int) -> bytes:
        return self.registers(self.packed(0x58), register, register, source, ZMM, mask)

    def max(self, register: int, source: int, mask: int) -> bytes:
        return self.maximum(register, source, ZMM, mask)

    def maximum(self, register: int, source: int, length: int, mask: int = 0) -> bytes:
        unordered = self.registers(self.packed(0xC2), SCRATCH, source, source, length, mask)
        larger = self.registers(self.packed(0x5F), register, source, register, length, mask)
        copy = self.registers(self.packed(0x28), register, 0, source, length, SCRATCH)
        return unordered + b"\x03" + larger + copy

    def across(self, register: int, spare: int, combine: Callable[[int], bytes]) -> bytes:
        upper_half = self.registers((MAP_0F3A, 1, 1, 0x1B), register, 0, spare)  # vextractf64x4
        return upper_half + b"\x01" + combine(YMM) + super().across(register, spare, combine)

    def abs(self, register: int, slot: int) -> bytes:
        """vpandd, vpandq"""
        opcode = (MAP_0F, 1, self.wide, 0xDB)
        return self.memory(opcode, register, POOL, self.slot(slot), vvvv=register)

    def negate(self, register: int, slot: int) -> bytes:
        """vpxord, vpxorq"""
        opcode = (MAP_0F, 1, self.wide, 0xEF)
        return self.memory(opcode, register, POOL, self.slot(slot), vvvv=register)
