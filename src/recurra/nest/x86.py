"""The common part of the AVX2 and AVX-512 encoders: scalar code, loops, prologue, constants.

A kernel is called with the tensors' pointers, as the System V ABI passes them. Pointers stay in
registers, and so do counters as long as there are free ones; deeper loops count on the stack.
Facts: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from recurra.nest.program import MASKS, Instruction, NestCode

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI = range(8)
R8, R9, R10, R11, R12, R13, R14, R15 = range(8, 16)
ARGUMENTS = (RDI, RSI, RDX, RCX, R8, R9)
POINTERS = (*ARGUMENTS, R10)  # never rsp, rbp, r12, r13: their operands are encoded otherwise
POOL = R11
COUNTERS = (RAX, RCX, R8, R9, R10, RBX, RBP, R12, R13, R14, R15)
SAVED = (RBX, RBP, R12, R13, R14, R15)
SLOT = 64  # bytes of the pool per constant; masks come first
LINKS = 16  # bytes at the pool's end: addresses of functions of the C library, malloc and free
ZMM, YMM, XMM = 2, 1, 0  # lengths, as VEX and EVEX encode them
MAP_0F, MAP_0F38, MAP_0F3A = 1, 2, 3

Opcode = tuple[int, int, int, int]
"""(map, prefix, W, byte)"""


def le32(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


def add_immediate(register: int, value: int) -> bytes:
    """add r, value"""
    if -128 <= value < 128:
        return bytes((0x48 | register >> 3, 0x83, 0xC0 | register & 7, value & 255))
    return bytes((0x48 | register >> 3, 0x81, 0xC0 | register & 7)) + le32(value)


def push(register: int) -> bytes:
    return bytes((0x41, 0x50 | register & 7) if register > 7 else (0x50 | register,))


def pop(register: int) -> bytes:
    return bytes((0x41, 0x58 | register & 7) if register > 7 else (0x58 | register,))


def memory_operand(
    reg: int, base: int, disp: int, unit: int, index: int | None, scale: int
) -> bytes:
    """ModRM, SIB and displacement of [base + disp], or [base + index · 2^scale + disp].

    A displacement that is a small multiple of `unit` takes one byte.
    """
    low, sib = base & 7, b""
    if index is not None:
        low, sib = 4, bytes((scale << 6 | (index & 7) << 3 | base & 7,))
    short, rest = divmod(disp, unit)
    if disp == 0:
        return bytes(((reg & 7) << 3 | low,)) + sib
    if rest == 0 and -128 <= short < 128:
        return bytes((0x40 | (reg & 7) << 3 | low,)) + sib + bytes((short & 255,))
    return bytes((0x80 | (reg & 7) << 3 | low,)) + sib + le32(disp)


class Encoder(ABC):
    """Encodes programs of one element type. Subclasses have the encoding of their vector registers.

    The bytes of an instruction depend on nothing but itself, so they are cached: tuning compiles
    thousands of programs that share most of their instructions.
    """

    vector_wide: ClassVar[bool]
    """Is W set in packed operations of f64?"""
    other: ClassVar[int]
    """A vector register that encodings use: the generator leaves it alone where they do."""

    words: ClassVar[tuple[str, ...]] = (
        *("zero", "constant", "load", "splat", "first", "gather", "store", "single", "scatter"),
        *("load16", "splat16", "gather16"),
        *("fma", "add", "max", "mul", "sum", "top", "relu", "square", "abs", "negate"),
    )

    def __init__(self, dtype: str) -> None:
        self.wide = int(dtype == "f64")  # also the prefix of packed operations
        self.w = self.wide * self.vector_wide
        self.item = 8 if self.wide else 4
        self.methods: Mapping[str, Callable[..., bytes]] = {w: getattr(self, w) for w in self.words}
        self.cache: dict[Instruction, bytes] = {}

    def mask(self, number: int, width: int) -> bytes:
        """Return the code at entry that prepares a mask register; nothing where there are none."""
        return b""

    def encode(self, program: NestCode) -> bytes:
        """Return a function of `program.tensors` pointers that keeps the ABI's saved registers."""
        counters = [
            r for r in COUNTERS if r not in POINTERS[: program.tensors + len(program.buffers)]
        ]
        cache, body, depth, deepest = self.cache, bytearray(), 0, 0
        starts: list[int] = []
        for instruction in program.code:
            word = instruction[0]
            if word == "repeat":
                body += self._count(counters, depth, instruction[1])
                starts.append(len(body))
                depth += 1
                deepest = max(deepest, depth)
            elif word == "end":
                depth -= 1
                body += self._down(counters, depth)
                body += b"\x0f\x85" + le32(starts.pop() - len(body) - 6)  # jnz
            elif word == "move":
                body += add_immediate(POINTERS[instruction[1]], instruction[2])
            else:
                code = cache.get(instruction)
                if code is None:
                    code = cache[instruction] = self.methods[word](*instruction[1:])
                body += code
        return self._framed(program, bytes(body), counters, deepest)

    def _count(self, counters: list[int], depth: int, trips: int) -> bytes:
        """mov r32, trips, or a counter on the stack"""
        if depth < len(counters):
            r = counters[depth]
            return (b"\x41" if r > 7 else b"") + bytes((0xB8 | r & 7,)) + le32(trips)
        return b"\x48\xc7\x84\x24" + le32(8 * (depth - len(counters))) + le32(trips)

    def _down(self, counters: list[int], depth: int) -> bytes:
        """dec r, or a counter on the stack"""
        if depth < len(counters):
            r = counters[depth]
            return bytes((0x48 | r >> 3, 0xFF, 0xC8 | r & 7))
        return b"\x48\xff\x8c\x24" + le32(8 * (depth - len(counters)))

    def _framed(self, program: NestCode, body: bytes, counters: list[int], deepest: int) -> bytes:
        saved = [r for r in counters[:deepest] if r in SAVED]
        counts = room = 8 * max(0, deepest - len(counters))
        if program.buffers:  # the scratch area's address; functions are called on multiples of 16
            room += 8 + 8 * ((len(saved) + room // 8) % 2)
        entry = b"".join(map(push, saved))
        if program.tensors > len(ARGUMENTS):  # the seventh pointer is above the return address
            entry += b"\x4c\x8b\x94\x24" + le32(8 * (len(saved) + 1))  # mov r10, [rsp + ..]
        leave = b"".join(map(pop, reversed(saved)))
        if room:
            entry += b"\x48\x81\xec" + le32(room)  # sub rsp
            leave = b"\x48\x81\xc4" + le32(room) + leave
        scratch, freed = self._scratch(program, counts) if program.buffers else (b"", b"")
        masks = b"".join(self.mask(k + 1, w) for k, w in enumerate(program.widths))
        # without vzeroupper, SSE code of the caller is slow for a while
        leave = b"\xc5\xf8\x77" + freed + leave + b"\xc3"
        inside = scratch + masks + body + leave
        pad = -(len(entry) + 7 + len(inside)) % SLOT
        lea = b"\x4c\x8d\x1d" + le32(len(inside) + pad)  # lea r11, [rip + ..]
        return entry + lea + inside + b"\xcc" * pad + self._pool(program)

    def _scratch(self, program: NestCode, at: int) -> tuple[bytes, bytes]:
        """Return the code that allocates the buffers in one piece at entry, and frees it at exit.

        The piece's address is stored at [rsp + at]. Stacks of threads may be too small for buffers.
        """
        allocate = self.slot(len(program.pool))
        live = [*POINTERS[: program.tensors], POOL]
        live += live[-1:] * (len(live) % 2)
        sizes = [-(-size // SLOT) * SLOT for size in program.buffers]
        code = b"".join(map(push, live))
        code += b"\xbf" + le32(sum(sizes) + SLOT)  # mov edi, ..
        code += b"\x41\xff\x93" + le32(allocate)  # call [r11 + ..]
        code += b"".join(map(pop, reversed(live)))
        code += b"\x48\x85\xc0\x75\x02\x0f\x0b"  # test rax, rax; jnz; ud2: there is no memory
        code += b"\x48\x89\x84\x24" + le32(at)  # mov [rsp + at], rax
        start = SLOT - 1
        for r, size in zip(POINTERS[program.tensors :], sizes, strict=False):
            code += bytes((0x48 | r >> 3 << 2, 0x8D, 0x80 | (r & 7) << 3)) + le32(start)  # lea
            code += bytes((0x48 | r >> 3, 0x83, 0xE0 | r & 7, -SLOT & 255))  # and r, -64
            start += size
        freed = b"\x48\x8b\xbc\x24" + le32(at)  # mov rdi, [rsp + at]
        return code, freed + b"\x41\xff\x93" + le32(allocate + 8)

    def _pool(self, program: NestCode) -> bytes:
        """Masks (lanes of ones), constants, and room for the addresses that `linked` fills in."""
        ones = [b"\xff" * (width * self.item) for width in program.widths]
        masks = b"".join(x.ljust(SLOT, b"\0") for x in ones).ljust(SLOT * MASKS, b"\0")
        constants = b"".join(
            c.lanes(program.dtype, program.lanes).ljust(SLOT, b"\0") for c in program.pool
        )
        return masks + constants + bytes(LINKS if program.buffers else 0)

    def slot(self, number: int) -> int:
        """Return the offset of a constant from the pool's pointer."""
        return SLOT * (MASKS + number)

    # Vector instructions that differ in the encoding of their operands only

    @abstractmethod
    def registers(self, opcode: Opcode, reg: int, vvvv: int, rm: int, length: int = XMM) -> bytes:
        """Encode the register form; the default length is a whole register of the subclass."""

    @abstractmethod
    def memory(
        self, opcode: Opcode, reg: int, base: int, disp: int, length: int = XMM,
        *, unit: int = SLOT, vvvv: int = 0,
    ) -> bytes:  # fmt: skip
        """Encode the form with [base + disp]; `unit` is the size of a compressed displacement."""

    @abstractmethod
    def maximum(self, register: int, source: int, length: int) -> bytes:
        """Encode the larger of both, lane by lane, or NaN.

        vmaxps gives its last operand where one is NaN: a NaN stays in the register, and one of the
        source is copied.
        """

    def packed(self, byte: int) -> Opcode:
        return MAP_0F, self.wide, self.w, byte

    def scalar(self, byte: int) -> Opcode:
        return MAP_0F, 3 if self.wide else 2, self.w, byte

    @abstractmethod
    def zero(self, register: int) -> bytes: ...

    def constant(self, register: int, slot: int) -> bytes:
        return self.memory(self.packed(0x10), register, POOL, self.slot(slot))

    def splat(self, register: int, tensor: int, offset: int) -> bytes:
        opcode = (MAP_0F38, 1, self.w, 0x19 if self.wide else 0x18)
        return self.memory(opcode, register, POINTERS[tensor], offset, unit=self.item)

    def splat16(self, register: int, tensor: int, offset: int) -> bytes:
        code = self.memory((MAP_0F38, 1, 0, 0x79), register, POINTERS[tensor], offset, unit=2)
        return code + self.upper(register)

    def gather16(self, register: int, tensor: int, offset: int, width: int, stride: int) -> bytes:
        """Lane by lane: gathers read four bytes, perhaps past the end."""
        code = self.zero(register) + (self.zero(self.other) if width > 8 else b"")
        base = POINTERS[tensor]
        for lane in range(width):  # vpinsrw
            half, at = register if lane < 8 else self.other, offset + lane * stride
            code += self.memory((MAP_0F, 1, 0, 0xC4), half, base, at, XMM, unit=2, vvvv=half)
            code += bytes((lane % 8,))
        if width > 8:  # vinserti32x4
            code += self.registers((MAP_0F3A, 1, 0, 0x38), register, register, self.other, YMM)
            code += b"\x01"
        code += self.registers((MAP_0F38, 1, 0, 0x33), register, 0, register)  # vpmovzxwd
        return code + self.upper(register)

    def upper(self, register: int) -> bytes:
        """vpslld r, r, 16: bf16 in the lower half of each lane becomes f32"""
        return self.registers((MAP_0F, 1, 0, 0x72), 6, register, register) + b"\x10"

    def first(self, register: int, tensor: int, offset: int) -> bytes:
        base, unit = POINTERS[tensor], self.item
        return self.memory(self.scalar(0x10), register, base, offset, XMM, unit=unit)

    def single(self, register: int, tensor: int, offset: int) -> bytes:
        base, unit = POINTERS[tensor], self.item
        return self.memory(self.scalar(0x11), register, base, offset, XMM, unit=unit)

    def mul(self, register: int, left: int, right: int) -> bytes:
        return self.registers(self.packed(0x59), register, left, right)

    def square(self, register: int) -> bytes:
        return self.mul(register, register, register)

    def relu(self, register: int, spare: int) -> bytes:
        return self.zero(spare) + self.registers(self.packed(0x5F), register, spare, register)

    def sum(self, register: int, spare: int) -> bytes:
        add = self.packed(0x58)
        return self.across(
            register, spare, lambda length: self.registers(add, register, register, spare, length)
        )

    def top(self, register: int, spare: int) -> bytes:
        return self.across(register, spare, lambda length: self.maximum(register, spare, length))

    def across(self, register: int, spare: int, combine: Callable[[int], bytes]) -> bytes:
        """Combine the halves of a YMM register, and halves of these, until one lane is left."""
        extract = (MAP_0F3A, 1, 0, 0x19)  # vextractf128, vextractf32x4
        code = self.registers(extract, register, 0, spare, YMM) + b"\x01" + combine(XMM)
        permute = (MAP_0F3A, 1, self.w, 0x05 if self.wide else 0x04)  # vpermilpd, vpermilps
        for order in (1,) if self.wide else (0b01001110, 0b10110001):
            code += self.registers(permute, spare, 0, register, XMM) + bytes((order,))
            code += combine(XMM)
        return code
