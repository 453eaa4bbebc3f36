"""The door of a compiled contraction: is every array what the kernel was compiled for?

Asked in Python, that takes longer than a small kernel. So on x86-64 it is asked in machine code,
which reads NumPy's array objects: type, shape, strides, element type, alignment, and whether the
output is writeable and shares memory with an input. Where the answer is no, nothing has happened,
and Python asks again, for words. The layout of array objects (`PyArrayObject_fields`, part of
NumPy's ABI) is compared with a known array before it is relied upon.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from recurra.nest.native import Code
from recurra.nest.target import features
from recurra.nest.x86 import ARGUMENTS, R10, RAX, le32

HEAD = object.__basicsize__  # where the fields of an object begin
TYPE, DATA, RANK, SHAPE, STRIDES, DESCR, FLAGS = (
    HEAD - 8, HEAD, HEAD + 8, HEAD + 16, HEAD + 24, HEAD + 40, HEAD + 48,
)  # fmt: skip
ALIGNED, WRITEABLE = 0x100, 0x400


class Layout(Protocol):
    """What an array has to be; `low` to `high` are its bytes, from its first element's address."""

    shape: tuple[int, ...]
    in_bytes: tuple[int, ...]
    dtype: np.dtype[Any]
    low: int
    high: int


def entry(kernel: int, layouts: Sequence[Layout], owner: object) -> Callable[..., int] | None:
    """A function of the ids of arrays, inputs first: 0 if the kernel has run on them.

    None where array objects are not as we know them, or there are more than six.
    """
    if len(layouts) > len(ARGUMENTS) or not features() or not fields_are_known():
        return None
    code = Code(_assembled(kernel, layouts))
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * len(layouts))
    call: Any = kind(code.address)
    call.owner = (code, owner)
    return call


def _assembled(kernel: int, layouts: Sequence[Layout]) -> bytes:
    asm = _Assembler()
    registers = ARGUMENTS[: len(layouts)]
    for k, (r, layout) in enumerate(zip(registers, layouts, strict=True)):
        asm.pointer_is(r, TYPE, id(np.ndarray))
        asm.pointer_is(r, DESCR, id(layout.dtype))
        asm.flags_are(r, ALIGNED | (WRITEABLE if k == len(layouts) - 1 else 0))
        asm.rank_is(r, len(layout.shape))
        asm.field(R10, r, SHAPE)
        for axis, n in enumerate(layout.shape):
            asm.item_is(axis, n)
        asm.field(R10, r, STRIDES)
        for axis, (n, stride) in enumerate(zip(layout.shape, layout.in_bytes, strict=True)):
            if n > 1:
                asm.item_is(axis, stride)
    for r in registers:
        asm.field(r, r, DATA)
    for r, layout in zip(registers[:-1], layouts, strict=False):
        asm.apart(r, layout, registers[-1], layouts[-1])
    return asm.done(kernel)


class _Assembler:
    """A few instructions; rax and r10 are free, a wrong answer jumps to the end."""

    def __init__(self) -> None:
        self.code = bytearray()
        self.jumps: list[int] = []

    def fail(self, condition: int) -> None:
        self.code += bytes((0x0F, condition)) + le32(0)
        self.jumps.append(len(self.code))

    def pointer_is(self, r: int, offset: int, value: int) -> None:
        """mov rax, value; cmp [r + offset], rax"""
        self.code += b"\x48\xb8" + value.to_bytes(8, "little")
        self.code += bytes((0x48 | r >> 3, 0x39, 0x40 | r & 7, offset))
        self.fail(0x85)

    def flags_are(self, r: int, flags: int) -> None:
        """mov eax, [r + FLAGS]; and eax, flags; cmp eax, flags"""
        self.code += bytes((0x40 | r >> 3, 0x8B, 0x40 | r & 7, FLAGS))
        self.code += b"\x25" + le32(flags) + b"\x3d" + le32(flags)
        self.fail(0x85)

    def rank_is(self, r: int, rank: int) -> None:
        """cmp dword [r + RANK], rank"""
        self.code += bytes((0x40 | r >> 3, 0x83, 0x78 | r & 7, RANK, rank))
        self.fail(0x85)

    def field(self, to: int, r: int, offset: int) -> None:
        """mov to, [r + offset]"""
        self.code += bytes(
            (0x48 | to >> 3 << 2 | r >> 3, 0x8B, 0x40 | (to & 7) << 3 | r & 7, offset)
        )

    def item_is(self, index: int, value: int) -> None:
        """cmp qword [r10 + 8 index], value"""
        self.code += b"\x49\x81\xba" + le32(8 * index) + le32(value)
        self.fail(0x85)

    def lea(self, to: int, r: int, offset: int) -> None:
        self.code += bytes((0x48 | to >> 3 << 2 | r >> 3, 0x8D, 0x80 | (to & 7) << 3 | r & 7))
        self.code += le32(offset)

    def apart(self, r: int, input: Layout, out: int, output: Layout) -> None:
        """Fails unless r's first byte is behind out's last, or out's first behind r's last."""
        self.lea(RAX, r, input.low)
        self.lea(R10, out, output.high)
        self.code += b"\x4c\x39\xd0"  # cmp rax, r10
        self.code += b"\x0f\x83" + le32(7 + 7 + 3 + 6)  # jae: over the second question
        self.lea(RAX, r, input.high)
        self.lea(R10, out, output.low)
        self.code += b"\x49\x39\xc2"  # cmp r10, rax
        self.fail(0x82)  # jb

    def done(self, kernel: int) -> bytes:
        self.code += b"\x48\xb8" + kernel.to_bytes(8, "little") + b"\xff\xd0"  # call
        self.code += b"\x31\xc0\xc3"  # xor eax, eax; ret
        for at in self.jumps:
            self.code[at - 4 : at] = le32(len(self.code) - at)
        return bytes(self.code + b"\xb8\x01\x00\x00\x00\xc3")  # mov eax, 1; ret


@cache
def fields_are_known() -> bool:
    """Are array objects laid out as we think? One is looked into, field by field."""
    if sys.implementation.name != "cpython" or HEAD != 16:
        return False
    x = np.zeros((3, 4, 5), np.float64)[1:, ::2, 1]
    x.flags.writeable = False
    at = id(x)
    flags = ctypes.c_int.from_address(at + FLAGS).value
    return (
        ctypes.c_void_p.from_address(at + TYPE).value == id(np.ndarray)
        and ctypes.c_void_p.from_address(at + DATA).value == x.__array_interface__["data"][0]
        and ctypes.c_int.from_address(at + RANK).value == x.ndim
        and _numbers(at + SHAPE, x.ndim) == x.shape
        and _numbers(at + STRIDES, x.ndim) == x.strides
        and ctypes.c_void_p.from_address(at + DESCR).value == id(x.dtype)
        and bool(flags & ALIGNED)
        and not flags & WRITEABLE
    )


def _numbers(at: int, count: int) -> tuple[int, ...]:
    start = ctypes.c_void_p.from_address(at).value or 0
    return tuple((ctypes.c_int64 * count).from_address(start))
