"""Timers of kernels: the duration of each of several runs, with little overhead.

On x86-64 the loop over the runs is machine code that reads the time-stamp counter; a Python loop
would add half a microsecond to a run, as much as a small kernel takes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recurra.nest.executable_memory import Code, function
from recurra.nest.target import features
from recurra.nest.x86 import ARGUMENTS, R12, R13, R14, RBP, RBX, le32, pop, push

Seconds = NDArray[np.float64]

_SAVED = (RBX, RBP, R12, R13, R14)
_READ = b"\x0f\xae\xe8\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0"  # lfence; rdtsc; rax |= rdx << 32


def run_times(address: int, pointers: Sequence[int], runs: int) -> Seconds:
    """Return the seconds of each of `runs` runs of the function of these pointers at `address`."""
    if "tsc" not in features() or "constant_tsc" not in features():
        return call_times(function(address, len(pointers), None), pointers, runs)
    ticks = np.empty(runs, np.int64)
    arguments = np.array(pointers, np.int64)
    _loop(len(pointers)).call(address, arguments.ctypes.data, runs, ticks.ctypes.data)
    return ticks.astype(np.float64) * np.float64(seconds_per_tick())


def cpu_times(address: int, pointers: Sequence[int], runs: int) -> Seconds:
    """Return the same in CPU time of this thread: preemption does not count."""
    return call_times(function(address, len(pointers), None), pointers, runs, time.thread_time)


def call_times(
    call: Callable[..., None],
    pointers: Sequence[int],
    runs: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Seconds:
    """Return the seconds of each of `runs` calls from Python."""
    times = np.empty(runs)
    for k in range(runs):
        start = clock()
        call(*pointers)
        times[k] = clock() - start
    return times


class _Loop:
    """Machine code that stores the ticks of each run."""

    def __init__(self, pointers: int) -> None:
        self.code = Code(_assembled(pointers))
        kinds = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        self.call: Any = ctypes.CFUNCTYPE(None, *kinds)(self.code.address)


_loop = cache(_Loop)


def _assembled(pointers: int) -> bytes:
    """Assemble the loop, of (kernel, pointers, runs, ticks) in rdi, rsi, rdx, rcx."""
    body = _READ + b"\x48\x89\xc5"  # mov rbp, rax
    for k, r in enumerate(ARGUMENTS[:pointers]):  # mov r, [r12 + 8k]
        body += bytes((0x49 | r >> 3 << 2, 0x8B, 0x84 | (r & 7) << 3, 0x24)) + le32(8 * k)
    extra = pointers > len(ARGUMENTS)
    if extra:  # sub rsp, 16; mov rax, [r12 + 48]; mov [rsp], rax
        body += b"\x48\x83\xec\x10\x49\x8b\x84\x24" + le32(48) + b"\x48\x89\x04\x24"
    body += b"\xff\xd3"  # call rbx
    body += b"\x48\x83\xc4\x10" if extra else b""
    body += _READ + b"\x48\x29\xe8"  # sub rax, rbp
    body += b"\x49\x89\x06\x49\x83\xc6\x08"  # mov [r14], rax; add r14, 8
    body += b"\x49\xff\xcd"  # dec r13
    body += b"\x0f\x85" + le32(-len(body) - 6)  # jnz
    moves = b"\x48\x89\xfb\x49\x89\xf4\x49\x89\xd5\x49\x89\xce"  # to rbx, r12, r13, r14
    leave = b"".join(map(pop, reversed(_SAVED))) + b"\xc3"
    return b"".join(map(push, _SAVED)) + moves + body + leave


@cache
def seconds_per_tick() -> float:
    """Measure a tick of the time-stamp counter by the system's clock: the best of three tries."""
    probe = Code(b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3")
    read = ctypes.CFUNCTYPE(ctypes.c_int64)(probe.address)
    tries: list[tuple[int, float]] = []
    for _ in range(3):
        before = time.perf_counter_ns()
        first = read()
        early = time.perf_counter_ns()
        while time.perf_counter_ns() - early < 5_000_000:
            pass
        late = time.perf_counter_ns()
        last = read()
        after = time.perf_counter_ns()
        uncertainty = (early - before) + (after - late)  # between the readings of both clocks
        tries.append((uncertainty, (late + after - before - early) / 2 * 1e-9 / (last - first)))
    return min(tries)[1]
