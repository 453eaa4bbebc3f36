"""The guarded call of a compiled contraction: a check of all arrays, then the kernel.

In Python the check takes longer than a small kernel. So on x86-64 it is machine code, a built-in
function that Python calls as `f(a, b, out=c)`. It reads NumPy's array objects: type, shape,
strides, element type, alignment, and whether the output is writeable and shares memory with an
input. If the check fails, a function in Python is called with the same arguments, which raises the
error. The layouts of array objects (`PyArrayObject_fields`, part of NumPy's ABI) and of tuples are
verified before they are relied upon.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np

from recurra.nest.executable_memory import Code
from recurra.nest.target import features
from recurra.nest.x86 import ARGUMENTS, R10, RAX, RBX, RCX, RDX, RSI, le32, pop, push

HEAD = object.__basicsize__  # where the fields of an object begin
TYPE, DATA, RANK, SHAPE, STRIDES, DESCR, FLAGS = (
    HEAD - 8, HEAD, HEAD + 8, HEAD + 16, HEAD + 24, HEAD + 40, HEAD + 48,
)  # fmt: skip
ALIGNED, WRITEABLE = 0x100, 0x400
COUNT, ITEM = HEAD, HEAD + 8  # in a tuple: its length, and its first item
FASTCALL, KEYWORDS = 0x80, 0x2  # METH_FASTCALL, METH_KEYWORDS: (self, arguments, count, names)
OUT = sys.intern("out")
BRIEF = 2**20  # operations: kernels of fewer keep Python's lock


class ArrayLayout(Protocol):
    """The layout of an array; `low` to `high` are its bytes, from its first element's address."""

    shape: tuple[int, ...]
    in_bytes: tuple[int, ...]
    dtype: np.dtype
    low: int
    high: int


class _Definition(ctypes.Structure):
    """PyMethodDef"""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def guarded_call(
    kernel: int, layouts: Sequence[ArrayLayout], operations: int, fallback: object, owner: object
) -> Callable[..., np.ndarray] | None:
    """Return a function of arrays, inputs first, `out=` last, that runs the kernel on them.

    Calls that fail the check go to `fallback`. None where the layouts of objects are unknown, or
    for more than six arrays.
    """
    if len(layouts) > len(ARGUMENTS) or not features() or not fields_are_known():
        return None
    code = Code(_assembled(kernel, layouts, operations >= BRIEF, fallback))
    definition = _Definition(b"contraction", code.address, FASTCALL | KEYWORDS, None)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, *[ctypes.py_object] * 2)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )
    return make(ctypes.addressof(definition), (code, definition, fallback, owner), __name__)


def _assembled(
    kernel: int, layouts: Sequence[ArrayLayout], unlocked: bool, fallback: object
) -> bytes:
    """Assemble a call (self, arguments, count, names); the last three are saved on the stack."""
    asm = _Assembler()
    registers = ARGUMENTS[: len(layouts)]
    asm.check_arguments(len(layouts) - 1)
    for k, r in sorted(enumerate(registers), key=lambda x: x[1] == RSI):
        asm.field(r, RSI, 8 * k)
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
        asm.check_disjoint(r, layout, registers[-1], layouts[-1])
    if unlocked:
        asm.call_unlocked(kernel, registers)
    else:
        asm.call(kernel)
    return asm.finish(len(layouts) - 1, id(fallback))


def _python(name: str) -> int:
    """Return the address of a function of Python's C API."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


class _Assembler:
    """A few instructions; rax and r10 are scratch registers, a failed check jumps to the end."""

    def __init__(self) -> None:
        self.code = bytearray()
        self.early: list[int] = []
        self.jumps: list[int] = []
        """Ends of the jumps of failed checks: before the stack is used, and after"""

    def check_arguments(self, inputs: int) -> None:
        """Check the number of arguments, and that one is named `out`; push rsi, rdx, rcx."""
        self.code += b"\x48\x81\xfa" + le32(inputs)  # cmp rdx, inputs
        self.fail(0x85)
        self.code += b"\x48\x85\xc9"  # test rcx, rcx
        self.fail(0x84)
        self.code += bytes((0x48, 0x83, 0x79, COUNT, 1))  # cmp qword [rcx + COUNT], 1
        self.fail(0x85)
        self.pointer_is(RCX, ITEM, id(OUT))
        self.early, self.jumps = self.jumps, []
        self.code += push(RSI) + push(RDX) + push(RCX)

    def call(self, address: int) -> None:
        """mov rax, address; call rax"""
        self.code += b"\x48\xb8" + address.to_bytes(8, "little") + b"\xff\xd0"

    def call_unlocked(self, kernel: int, registers: Sequence[int]) -> None:
        """Call the kernel without Python's lock; registers are saved on the stack."""
        room = 8 * (len(registers) | 1)  # an odd number, as rbx is pushed, too
        self.code += push(RBX) + b"\x48\x83\xec" + bytes((room,))  # sub rsp
        for k, r in enumerate(registers):  # mov [rsp + 8k], r
            self.code += bytes((0x48 | r >> 3 << 2, 0x89, 0x44 | (r & 7) << 3, 0x24, 8 * k))
        self.call(_python("PyEval_SaveThread"))
        self.code += b"\x48\x89\xc3"  # mov rbx, rax
        for k, r in enumerate(registers):
            self.code += bytes((0x48 | r >> 3 << 2, 0x8B, 0x44 | (r & 7) << 3, 0x24, 8 * k))
        self.call(kernel)
        self.code += b"\x48\x89\xdf"  # mov rdi, rbx
        self.call(_python("PyEval_RestoreThread"))
        self.code += b"\x48\x83\xc4" + bytes((room,)) + pop(RBX)

    def fail(self, condition: int) -> None:
        self.code += bytes((0x0F, condition)) + le32(0)
        self.jumps.append(len(self.code))

    def pointer_is(self, register: int, offset: int, value: int) -> None:
        """mov rax, value; cmp [r + offset], rax"""
        self.code += b"\x48\xb8" + value.to_bytes(8, "little")
        self.code += bytes((0x48 | register >> 3, 0x39, 0x40 | register & 7, offset))
        self.fail(0x85)

    def flags_are(self, register: int, flags: int) -> None:
        """mov eax, [r + FLAGS]; and eax, flags; cmp eax, flags"""
        self.code += bytes((0x40 | register >> 3, 0x8B, 0x40 | register & 7, FLAGS))
        self.code += b"\x25" + le32(flags) + b"\x3d" + le32(flags)
        self.fail(0x85)

    def rank_is(self, register: int, rank: int) -> None:
        """cmp dword [r + RANK], rank"""
        self.code += bytes((0x40 | register >> 3, 0x83, 0x78 | register & 7, RANK, rank))
        self.fail(0x85)

    def field(self, to: int, register: int, offset: int) -> None:
        """mov to, [r + offset]"""
        self.code += bytes(
            (0x48 | to >> 3 << 2 | register >> 3, 0x8B, 0x40 | (to & 7) << 3 | register & 7, offset)
        )

    def item_is(self, index: int, value: int) -> None:
        """cmp qword [r10 + 8 index], value"""
        self.code += b"\x49\x81\xba" + le32(8 * index) + le32(value)
        self.fail(0x85)

    def lea(self, to: int, register: int, offset: int) -> None:
        self.code += bytes(
            (0x48 | to >> 3 << 2 | register >> 3, 0x8D, 0x80 | (to & 7) << 3 | register & 7)
        )
        self.code += le32(offset)

    def check_disjoint(
        self, register: int, inp: ArrayLayout, out: int, output: ArrayLayout
    ) -> None:
        """Fail unless r's first byte is behind out's last, or out's first behind r's last."""
        self.lea(RAX, register, inp.low)
        self.lea(R10, out, output.high)
        self.code += b"\x4c\x39\xd0"  # cmp rax, r10
        self.code += b"\x0f\x83" + le32(7 + 7 + 3 + 6)  # jae: skip the second comparison
        self.lea(RAX, register, inp.high)
        self.lea(R10, out, output.low)
        self.code += b"\x49\x39\xc2"  # cmp r10, rax
        self.fail(0x82)  # jb

    def finish(self, inputs: int, fallback: int) -> bytes:
        """Return the last argument as a new reference; finish the code."""
        self.code += b"\x48\x8b\x44\x24\x10"  # mov rax, [rsp + 16]
        self.field(RAX, RAX, 8 * inputs)
        self.code += b"\x48\xff\x00"  # inc qword [rax]
        self.code += b"\x48\x83\xc4\x18\xc3"  # add rsp, 24; ret
        self.patch(self.jumps)
        self.code += pop(RCX) + pop(RDX) + pop(RSI)
        self.patch(self.early)
        self.code += b"\x48\xbf" + fallback.to_bytes(8, "little")  # mov rdi, fallback
        vectorcall = _python("PyObject_Vectorcall")
        return bytes(self.code + b"\x48\xb8" + vectorcall.to_bytes(8, "little") + b"\xff\xe0")

    def patch(self, jumps: Sequence[int]) -> None:
        """Let jumps end here."""
        for at in jumps:
            self.code[at - 4 : at] = le32(len(self.code) - at)


@cache
def fields_are_known() -> bool:
    """Verify the layout of array objects, field by field of an example."""
    if sys.implementation.name != "cpython" or HEAD != 16:
        return False
    x = np.zeros((3, 4, 5), np.float64)[1:, ::2, 1]
    x.flags.writeable = False
    at, names = id(x), (OUT,)
    flags = ctypes.c_int.from_address(at + FLAGS).value
    pointer = ctypes.c_void_p.from_address
    return (
        pointer(at + TYPE).value == id(np.ndarray)
        and pointer(at + DATA).value == x.__array_interface__["data"][0]
        and ctypes.c_int.from_address(at + RANK).value == x.ndim
        and _numbers(at + SHAPE, x.ndim) == x.shape
        and _numbers(at + STRIDES, x.ndim) == x.strides
        and pointer(at + DESCR).value == id(x.dtype)
        and bool(flags & ALIGNED)
        and ctypes.c_ssize_t.from_address(id(names) + COUNT).value == 1
        and pointer(id(names) + ITEM).value == id(OUT)
        and not flags & WRITEABLE
    )


def _numbers(at: int, count: int) -> tuple[int, ...]:
    start = ctypes.c_void_p.from_address(at).value or 0
    return tuple((ctypes.c_int64 * count).from_address(start))
