"""The common part of the AVX2 and AVX-512 encoders: integer code, loops, entry and exit, constants.

A kernel is called with the tensors' pointers, as the System V ABI passes them. Pointers stay in
registers, counters too, as long as there are any; deeper loops count on the stack.
Facts: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

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


class Encoder:
    """Programs of one element type to bytes. Subclasses encode the vector instructions.

    What an instruction encodes to depends on nothing but itself, so it is kept: tuning compiles
    thousands of programs that share most of their instructions.
    """

    words: ClassVar[tuple[str, ...]] = (
        *("zero", "constant", "load", "splat", "first", "gather", "store", "single", "scatter"),
        *("load16", "splat16", "gather16"),
        *("fma", "add", "max", "mul", "sum", "top", "relu", "square", "abs", "negate"),
    )

    def __init__(self, dtype: str) -> None:
        self.wide = int(dtype == "f64")  # also the W bit, and the prefix of packed operations
        self.item = 8 if self.wide else 4
        self.methods: Mapping[str, Callable[..., bytes]] = {w: getattr(self, w) for w in self.words}
        self.known: dict[Instruction, bytes] = {}

    def mask(self, number: int, width: int) -> bytes:
        """Code at entry that prepares a mask."""
        raise NotImplementedError

    def mask_constant(self, width: int) -> bytes:
        """The first slots of the pool: lanes of all ones up to `width`."""
        ones = b"\xff" * (width * self.item)
        return ones.ljust(SLOT, b"\0")

    def encode(self, program: NestCode) -> bytes:
        """A function of p.tensors pointers that keeps what the ABI says is to be kept."""
        counters = [
            r for r in COUNTERS if r not in POINTERS[: program.tensors + len(program.buffers)]
        ]
        known, body, depth, deepest = self.known, bytearray(), 0, 0
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
                code = known.get(instruction)
                if code is None:
                    code = known[instruction] = self.methods[word](*instruction[1:])
                body += code
        return self._framed(program, bytes(body), counters, deepest)

    def _count(self, counters: list[int], depth: int, trips: int) -> bytes:
        if depth < len(counters):
            r = counters[depth]
            return (b"\x41" if r > 7 else b"") + bytes((0xB8 | r & 7,)) + le32(trips)  # mov r32
        return b"\x48\xc7\x84\x24" + le32(8 * (depth - len(counters))) + le32(trips)

    def _down(self, counters: list[int], depth: int) -> bytes:
        if depth < len(counters):
            r = counters[depth]
            return bytes((0x48 | r >> 3, 0xFF, 0xC8 | r & 7))  # dec r
        return b"\x48\xff\x8c\x24" + le32(8 * (depth - len(counters)))

    def _framed(self, program: NestCode, body: bytes, counters: list[int], deepest: int) -> bytes:
        saved = [r for r in counters[:deepest] if r in SAVED]
        counts = room = 8 * max(0, deepest - len(counters))
        if (
            program.buffers
        ):  # the address of the scratch area; functions are called on multiples of 16
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
        """Code at entry that allocates the buffers in one piece, and at exit that frees it.

        The piece's address is kept at [rsp + at]. Stacks of threads may be too small for buffers.
        """
        allocate = self.slot(len(program.pool))
        kept = [*POINTERS[: program.tensors], POOL]
        kept += kept[-1:] * (len(kept) % 2)
        sizes = [-(-size // SLOT) * SLOT for size in program.buffers]
        code = b"".join(map(push, kept))
        code += b"\xbf" + le32(sum(sizes) + SLOT)  # mov edi, ..
        code += b"\x41\xff\x93" + le32(allocate)  # call [r11 + ..]
        code += b"".join(map(pop, reversed(kept)))
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
        """Masks, constants, and room for the addresses that `linked` fills in."""
        masks = b"".join(self.mask_constant(w) for w in program.widths).ljust(SLOT * MASKS, b"\0")
        constants = b"".join(
            c.lanes(program.dtype, program.lanes).ljust(SLOT, b"\0") for c in program.pool
        )
        return masks + constants + bytes(LINKS if program.buffers else 0)

    def slot(self, number: int) -> int:
        """The offset of a constant from the pool's pointer."""
        return SLOT * (MASKS + number)
