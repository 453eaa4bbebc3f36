"""Counts what NumPy allocates, to the byte: an allocator of our own in the place of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy._core._multiarray_umath as multiarray

VOID, SIZE = ctypes.c_void_p, ctypes.c_size_t
SET_HANDLER = 304  # of NumPy's table of C functions: PyDataMem_SetHandler

_malloc = ctypes.CFUNCTYPE(VOID, VOID, SIZE)
_calloc = ctypes.CFUNCTYPE(VOID, VOID, SIZE, SIZE)
_realloc = ctypes.CFUNCTYPE(VOID, VOID, VOID, SIZE)
_free = ctypes.CFUNCTYPE(None, VOID, VOID, SIZE)


class _Handler(ctypes.Structure):
    """PyDataMem_Handler"""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", VOID),
        ("malloc", _malloc),
        ("calloc", _calloc),
        ("realloc", _realloc),
        ("free", _free),
    )


@dataclass
class Counted:
    """Bytes now, and the most there were."""

    live: int = 0
    peak: int = 0

    def add(self, n: int) -> None:
        self.live += n
        self.peak = max(self.peak, self.live)


def _handler(count: Counted) -> _Handler:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = VOID
    libc.malloc.argtypes, libc.calloc.argtypes = [SIZE], [SIZE, SIZE]
    libc.realloc.argtypes, libc.free.argtypes = [VOID, SIZE], [VOID]
    sizes: dict[int, int] = {}

    def kept(at: int, n: int) -> int:
        sizes[at] = n
        count.add(n)
        return at

    def gone(at: int | None) -> None:
        if at is not None and at in sizes:  # what was there before is not counted
            count.live -= sizes.pop(at)

    def realloc(_: Any, at: int | None, n: int) -> int:
        gone(at)
        return kept(libc.realloc(at, n), n)

    def free(_: Any, at: int | None, n: int) -> None:
        gone(at)
        libc.free(at)

    return _Handler(
        b"counted",
        1,
        None,
        _malloc(lambda _, n: kept(libc.malloc(n), n)),
        _calloc(lambda _, n, m: kept(libc.calloc(n, m), n * m)),
        _realloc(realloc),
        _free(free),
    )


_kept: list[Any] = []  # arrays may outlive the count: what frees them must


@contextmanager
def counted() -> Generator[Counted]:
    """Arrays that are made inside are counted."""
    count = Counted()
    handler = _handler(count)
    new, set_handler = _api()
    capsule = new(ctypes.addressof(handler), b"mem_handler", None)
    _kept.append((handler, capsule))
    before = set_handler(capsule)
    try:
        yield count
    finally:
        set_handler(before)


def _api() -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """A new capsule; PyDataMem_SetHandler."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = VOID, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(multiarray._ARRAY_API, None)
    entry = ctypes.cast(table, ctypes.POINTER(VOID))[SET_HANDLER]
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [VOID, ctypes.c_char_p, VOID]
    return new, ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(entry)
