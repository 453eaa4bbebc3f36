"""AVX2: vector instructions to VEX bytes.

Masks are constants of the pool. Tails, gathers and maxima use ymm14 and ymm15, which the generator
reserves for them.
"""

from __future__ import annotations

from recurra.nest.x86 import (
    MAP_0F,
    MAP_0F3A,
    MAP_0F38,
    POINTERS,
    POOL,
    SLOT,
    XMM,
    YMM,
    Encoder,
    Opcode,
    memory_operand,
)

OTHER, MASK = 14, 15


class Avx2(Encoder):
    """256-bit registers, eight f32 or four f64."""

    vector_wide = False
    other = OTHER

    def registers(self, opcode: Opcode, reg: int, vvvv: int, rm: int, length: int = YMM) -> bytes:
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

    def memory(
        self, opcode: Opcode, reg: int, base: int, disp: int, length: int = YMM,
        *, unit: int = 0, vvvv: int = 0, index: int | None = None, scale: int = 0,
    ) -> bytes:  # fmt: skip
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
        return head + memory_operand(reg, base, disp, 1, index, scale)

    def _load_mask(self, mask: int) -> bytes:
        return self.memory((MAP_0F, 0, 0, 0x10), MASK, POOL, SLOT * (mask - 1))

    def zero(self, register: int) -> bytes:
        return self.registers((MAP_0F, 0, 0, 0x57), register, register, register)  # vxorps

    def load(self, register: int, tensor: int, offset: int, mask: int) -> bytes:
        return self._move(0x10, 0x2C, register, tensor, offset, mask)

    def store(self, register: int, tensor: int, offset: int, mask: int) -> bytes:
        return self._move(0x11, 0x2E, register, tensor, offset, mask)

    def _move(
        self, byte: int, masked: int, register: int, tensor: int, offset: int, mask: int
    ) -> bytes:
        """vmovups, or vmaskmovps"""
        if not mask:
            return self.memory(self.packed(byte), register, POINTERS[tensor], offset)
        opcode = (MAP_0F38, 1, 0, masked + self.wide)
        access = self.memory(opcode, register, POINTERS[tensor], offset, vvvv=MASK)
        return self._load_mask(mask) + access

    def load16(self, register: int, tensor: int, offset: int, mask: int, width: int) -> bytes:
        """vpmovzxwd: an element in the lower half of each lane, to be moved into the upper one"""
        if mask:
            return self.gather16(register, tensor, offset, width, 2)
        code = self.memory((MAP_0F38, 1, 0, 0x33), register, POINTERS[tensor], offset)
        return code + self.upper(register)

    def gather(
        self, register: int, tensor: int, offset: int, mask: int, slot: int, width: int, stride: int
    ) -> bytes:
        """The instruction clears the mask, so it is set each time."""
        all_ones = self.registers((MAP_0F, 1, 0, 0x76), MASK, MASK, MASK)  # vpcmpeqd
        load = self._load_mask(mask) if mask else all_ones
        offsets = self.memory((MAP_0F, 0, 0, 0x10), OTHER, POOL, self.slot(slot))
        opcode, scale = (MAP_0F38, 1, self.wide, 0x92), 3 if self.wide else 2
        base = POINTERS[tensor]
        access = self.memory(opcode, register, base, offset, vvvv=MASK, index=OTHER, scale=scale)
        return self.zero(register) + offsets + load + access

    def scatter(
        self, register: int, tensor: int, offset: int, mask: int, slot: int, width: int, stride: int
    ) -> bytes:
        """Lane by lane: AVX2 has no such instruction."""
        code, base, half = b"", POINTERS[tensor], 16 // self.item
        for lane in range(width):
            source = register if lane < half else OTHER
            if lane == half:  # vextractf128
                code += self.registers((MAP_0F3A, 1, 0, 0x19), register, 0, OTHER) + b"\x01"
            at = offset + lane * stride
            if not self.wide:  # vextractps
                code += self.memory((MAP_0F3A, 1, 0, 0x17), source, base, at, XMM)
                code += bytes((lane % half,))
            else:  # vmovlpd, vmovhpd
                byte = 0x17 if lane % half else 0x13
                code += self.memory((MAP_0F, 1, 0, byte), source, base, at, XMM)
        return code

    def fma(self, register: int, left: int, right: int, mask: int) -> bytes:
        opcode = (MAP_0F38, 1, self.wide, 0xB8)
        if not mask:
            return self.registers(opcode, register, left, right)
        code = self._copy(OTHER, register) + self.registers(opcode, OTHER, left, right)
        return code + self._blend(register, OTHER, mask)

    def add(self, register: int, source: int, mask: int) -> bytes:
        if not mask:
            return self.registers(self.packed(0x58), register, register, source)
        code = self.registers(self.packed(0x58), OTHER, register, source)
        return code + self._blend(register, OTHER, mask)

    def max(self, register: int, source: int, mask: int) -> bytes:
        if not mask:
            return self.maximum(register, source, YMM)
        code = self._copy(OTHER, register) + self.maximum(OTHER, source, YMM)
        return code + self._blend(register, OTHER, mask)

    def maximum(self, register: int, source: int, length: int) -> bytes:
        larger = self.registers(self.packed(0x5F), register, source, register, length)
        unordered = self.registers(self.packed(0xC2), MASK, source, source, length) + b"\x03"
        return larger + unordered + self._choose(register, source, length)

    def _copy(self, register: int, source: int) -> bytes:
        return self.registers(self.packed(0x28), register, 0, source)

    def _blend(self, register: int, source: int, mask: int) -> bytes:
        """register = source in the lanes of the mask"""
        return self._load_mask(mask) + self._choose(register, source, YMM)

    def _choose(self, register: int, source: int, length: int) -> bytes:
        opcode = (MAP_0F3A, 1, 0, 0x4B if self.wide else 0x4A)
        return self.registers(opcode, register, register, source, length) + bytes((MASK << 4,))

    def abs(self, register: int, slot: int) -> bytes:
        """vandps"""
        return self.memory(self.packed(0x54), register, POOL, self.slot(slot), vvvv=register)

    def negate(self, register: int, slot: int) -> bytes:
        """vxorps"""
        return self.memory(self.packed(0x57), register, POOL, self.slot(slot), vvvv=register)
