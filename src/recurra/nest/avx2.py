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

    def _load_mask(self, m: int) -> bytes:
        return vex_memory((MAP_0F, 0, 0, 0x10), MASK, NOTHING, POOL, SLOT * (m - 1), YMM)

    def zero(self, r: int) -> bytes:
        return vex((MAP_0F, 0, 0, 0x57), r, r, r, YMM)  # vxorps

    def constant(self, r: int, s: int) -> bytes:
        return vex_memory(self.packed(0x10), r, NOTHING, POOL, self.slot(s), YMM)

    def load(self, r: int, step: int, o: int, m: int) -> bytes:
        if not m:
            return vex_memory(self.packed(0x10), r, NOTHING, POINTERS[step], o, YMM)
        opcode = (MAP_0F38, 1, 0, 0x2D if self.wide else 0x2C)  # vmaskmov
        return self._load_mask(m) + vex_memory(opcode, r, MASK, POINTERS[step], o, YMM)

    def store(self, r: int, step: int, o: int, m: int) -> bytes:
        if not m:
            return vex_memory(self.packed(0x11), r, NOTHING, POINTERS[step], o, YMM)
        opcode = (MAP_0F38, 1, 0, 0x2F if self.wide else 0x2E)
        return self._load_mask(m) + vex_memory(opcode, r, MASK, POINTERS[step], o, YMM)

    def splat(self, r: int, step: int, o: int) -> bytes:
        opcode = (MAP_0F38, 1, 0, 0x19 if self.wide else 0x18)
        return vex_memory(opcode, r, NOTHING, POINTERS[step], o, YMM)

    def load16(self, r: int, step: int, o: int, m: int, width: int) -> bytes:
        """vpmovzxwd: an element in the lower half of each lane, to be moved into the upper one"""
        if m:
            return self.gather16(r, step, o, width, 2)
        opcode = (MAP_0F38, 1, 0, 0x33)
        return vex_memory(opcode, r, NOTHING, POINTERS[step], o, YMM) + self._upper(r)

    def splat16(self, r: int, step: int, o: int) -> bytes:
        opcode = (MAP_0F38, 1, 0, 0x79)
        return vex_memory(opcode, r, NOTHING, POINTERS[step], o, YMM) + self._upper(r)

    def gather16(self, r: int, step: int, o: int, width: int, d: int) -> bytes:
        """Lane by lane: gathers read four bytes, perhaps past the end."""
        code = self.zero(r)
        for lane in range(width):  # vpinsrw
            insert = (MAP_0F, 1, 0, 0xC4)
            code += vex_memory(insert, r, r, POINTERS[step], o + lane * d, XMM) + bytes((lane,))
        return code + vex((MAP_0F38, 1, 0, 0x33), r, NOTHING, r, YMM) + self._upper(r)

    def _upper(self, r: int) -> bytes:
        """vpslld r, r, 16"""
        return vex((MAP_0F, 1, 0, 0x72), 6, r, r, YMM) + b"\x10"

    def first(self, r: int, step: int, o: int) -> bytes:
        return vex_memory(self.scalar(0x10), r, NOTHING, POINTERS[step], o, XMM)

    def single(self, r: int, step: int, o: int) -> bytes:
        return vex_memory(self.scalar(0x11), r, NOTHING, POINTERS[step], o, XMM)

    def gather(self, r: int, step: int, o: int, m: int, s: int, width: int, d: int) -> bytes:
        """The mask is used up by the instruction, so it is made anew."""
        all_ones = vex((MAP_0F, 1, 0, 0x76), MASK, MASK, MASK, YMM)  # vpcmpeqd
        mask = self._load_mask(m) if m else all_ones
        offsets = vex_memory((MAP_0F, 0, 0, 0x10), OTHER, NOTHING, POOL, self.slot(s), YMM)
        scale = 3 if self.wide else 2
        access = vex_memory(
            (MAP_0F38, 1, self.wide, 0x92), r, MASK, POINTERS[step], o, YMM, OTHER, scale
        )
        return self.zero(r) + offsets + mask + access

    def scatter(self, r: int, step: int, o: int, m: int, s: int, width: int, d: int) -> bytes:
        """Lane by lane: AVX2 has no such instruction."""
        code, base = b"", POINTERS[step]
        half = 16 // self.item
        for lane in range(width):
            source = r if lane < half else OTHER
            if lane == half:  # vextractf128
                code += vex((MAP_0F3A, 1, 0, 0x19), r, NOTHING, OTHER, YMM) + b"\x01"
            at = o + lane * d
            if not self.wide:  # vextractps
                code += vex_memory((MAP_0F3A, 1, 0, 0x17), source, NOTHING, base, at, XMM)
                code += bytes((lane % half,))
            else:  # vmovlpd, vmovhpd
                byte = 0x17 if lane % half else 0x13
                code += vex_memory((MAP_0F, 1, 0, byte), source, NOTHING, base, at, XMM)
        return code

    def fma(self, r: int, a: int, b: int, m: int) -> bytes:
        opcode = (MAP_0F38, 1, self.wide, 0xB8)
        if not m:
            return vex(opcode, r, a, b, YMM)
        return self._copy(OTHER, r) + vex(opcode, OTHER, a, b, YMM) + self._blend(r, OTHER, m)

    def _copy(self, r: int, a: int) -> bytes:
        return vex(self.packed(0x28), r, NOTHING, a, YMM)

    def _blend(self, r: int, a: int, m: int) -> bytes:
        """r = a in the lanes of the mask"""
        return self._load_mask(m) + self._choose(r, a, YMM)

    def _choose(self, r: int, a: int, length: int) -> bytes:
        opcode = (MAP_0F3A, 1, 0, 0x4B if self.wide else 0x4A)
        return vex(opcode, r, r, a, length) + bytes((MASK << 4,))

    def mul(self, r: int, a: int, b: int) -> bytes:
        return vex(self.packed(0x59), r, a, b, YMM)

    def square(self, r: int) -> bytes:
        return self.mul(r, r, r)

    def add(self, r: int, a: int, m: int) -> bytes:
        if not m:
            return vex(self.packed(0x58), r, r, a, YMM)
        return vex(self.packed(0x58), OTHER, r, a, YMM) + self._blend(r, OTHER, m)

    def max(self, r: int, a: int, m: int) -> bytes:
        if not m:
            return self._maximum(r, a, YMM)
        return self._copy(OTHER, r) + self._maximum(OTHER, a, YMM) + self._blend(r, OTHER, m)

    def _maximum(self, r: int, a: int, length: int) -> bytes:
        """vmaxps gives its last operand where one is NaN: r stays NaN, and NaN of a is copied."""
        larger = vex(self.packed(0x5F), r, a, r, length)
        unordered = vex(self.packed(0xC2), MASK, a, a, length) + b"\x03"
        return larger + unordered + self._choose(r, a, length)

    def sum(self, r: int, a: int) -> bytes:
        return self._across(r, a, lambda length: vex(self.packed(0x58), r, r, a, length))

    def top(self, r: int, a: int) -> bytes:
        return self._across(r, a, lambda length: self._maximum(r, a, length))

    def _across(self, r: int, a: int, combine: Combine) -> bytes:
        """Halves onto each other, until one lane is left."""
        code = vex((MAP_0F3A, 1, 0, 0x19), r, NOTHING, a, YMM) + b"\x01" + combine(XMM)
        byte = 0x05 if self.wide else 0x04  # vpermilpd, vpermilps
        for order in (1,) if self.wide else (0b01001110, 0b10110001):
            code += vex((MAP_0F3A, 1, 0, byte), a, NOTHING, r, XMM) + bytes((order,))
            code += combine(XMM)
        return code

    def relu(self, r: int, a: int) -> bytes:
        return self.zero(a) + vex(self.packed(0x5F), r, a, r, YMM)

    def abs(self, r: int, s: int) -> bytes:
        return vex_memory(self.packed(0x54), r, r, POOL, self.slot(s), YMM)  # vandps

    def negate(self, r: int, s: int) -> bytes:
        return vex_memory(self.packed(0x57), r, r, POOL, self.slot(s), YMM)  # vxorps
