"""Machine code in executable memory, which is writable only until it is filled (W^X)."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from recurra.errors import BackendError
from recurra.nest.avx2 import Avx2
from recurra.nest.avx512 import Avx512
from recurra.nest.program import NestCode
from recurra.nest.target import host_target
from recurra.nest.x86 import LINKS, Encoder

ENCODERS: dict[str, Callable[[str], Encoder]] = {"avx512": Avx512, "avx2": Avx2}


@cache
def encoder(name: str, dtype: str) -> Encoder:
    """Return the encoder of a target and an element type, with its cache of instructions."""
    return ENCODERS[name](dtype)


def encode(program: NestCode) -> bytes:
    """Return machine code, also for targets that this machine does not run."""
    return encoder(program.target, program.dtype).encode(program)


def linked(code: bytes) -> bytes:
    """Return a program with buffers, with this process's addresses of malloc and free filled in."""
    functions = (_libc().malloc, _libc().free)
    addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions]
    return code[:-LINKS] + struct.pack("<QQ", *addresses)


class Code:
    """Machine code in memory; freed with the last reference to it."""

    def __init__(self, code: bytes) -> None:
        pages = -(-len(code) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.size = len(code)
        self._memory = mmap.mmap(-1, pages)
        self._memory.write(code)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        if _libc().mprotect(ctypes.c_void_p(self.address), pages, _READ | _EXECUTE):
            raise BackendError(
                "memory cannot be made executable",
                facts=os.strerror(ctypes.get_errno()),
                hint='the portable way is backend="llvm"',
            )


_READ, _EXECUTE = 1, 4


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def function(address: int, tensors: int, owner: object) -> Callable[..., None]:
    """Return the function of so many pointers at `address`; it keeps `owner` alive."""
    call = _signature(tensors)(address)
    call.owner = owner
    return call


@cache
def _signature(tensors: int) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * tensors)


class NestKernel(Protocol):
    """A program loaded for execution: `call` takes the addresses of its tensors, inputs first."""

    program: NestCode
    address: int
    call: Callable[..., None]


class LoadedKernel:
    """A NestKernel by our own encoders.

    Raises BackendError if this machine lacks the program's instructions.
    """

    def __init__(self, program: NestCode) -> None:
        host_target(program.target)
        self.program = program
        code = encode(program)
        self.code = Code(linked(code) if program.buffers else code)
        self.address = self.code.address
        self.call = function(self.address, program.tensors, self.code)

    @property
    def size(self) -> int:
        """Bytes of machine code and constants."""
        return self.code.size
