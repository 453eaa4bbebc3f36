"""The compiler's interface to nests: kernels for the contractions of its programs.

A backend requests a contraction by labels and shapes, and compares its time with its own. XLA on
the CPU calls kernels through its foreign function interface: a handler reads the pointers from
XLA's call frame (`xla/ffi/api/c_api.h`) and calls the kernel. The handler is machine code, too, so
that no C compiler is needed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recurra.errors import RecurraError
from recurra.nest import kernel_store
from recurra.nest.check import KernelCheckError
from recurra.nest.compiled import Contraction, compile
from recurra.nest.einsum import from_layouts
from recurra.nest.executable_memory import Code
from recurra.nest.problem import contiguous
from recurra.nest.target import TARGETS, runnable
from recurra.nest.x86 import ARGUMENTS, R10, R11, RAX, RDI, le32
from recurra.support import atomic_write, cpu
from recurra.support.notices import tell_once

WORTH = 2**17  # operations: fewer take less time than the call of a kernel
ROUNDS, SPAN_S = 9, 0.001
GAIN = 1.1  # least speed-up over the backend's own
WHOLE = 1.03  # the same of the code around kernels: above the noise of `measure_in_turns`
ENOUGH_S = 0.5  # past this, two rounds are enough


@dataclass(frozen=True)
class KernelChoice:
    """A contraction of a program, timed by itself as a kernel and as the backend's own code."""

    statement: str
    sizes: str
    order: str
    ours_us: float
    theirs_us: float
    inside: float | None = None
    """The speed-up of the code around it with kernels, where that was measured"""

    @property
    def gain(self) -> float:
        return self.theirs_us / self.ours_us

    @property
    def alone(self) -> bool:
        """Tell whether the kernel by itself is faster."""
        return self.gain >= GAIN

    @property
    def taken(self) -> bool:
        """Tell whether the kernel is used."""
        return self.alone and (self.inside is None or self.inside >= WHOLE)


def contraction(
    labels: str,
    shapes: Sequence[tuple[int, ...]],
    strides: Sequence[tuple[int, ...]] | None = None,
) -> Contraction | None:
    """Return the kernel of an einsum of f32 arrays: the tuned one, or the standard tile.

    `strides` are in elements; without them, arrays are C-contiguous. None for too little work, an
    axis read twice, an array that overlaps itself, more than six tensors, or another kind of
    machine; and, with a notice, where `compile` refuses it.
    """
    inputs, _, out = _lettered(labels).partition("->")
    parts = inputs.split(",")
    indices = set("".join(parts))
    doubled = any(len(set(p)) < len(p) for p in parts)
    if doubled or not indices - set(out) or len(parts) >= len(ARGUMENTS):
        return None
    if not runnable():
        tell_once(f"contractions have no kernels: this processor runs none of {', '.join(TARGETS)}")
        return None
    if not all(parts) or any(0 in shape for shape in shapes) or len(indices) > 8:
        return None
    strides = strides or [contiguous(shape) for shape in shapes]
    layouts = list(zip(shapes, strides, strict=True))
    if any(s <= 0 < n - 1 for layout in layouts for n, s in zip(*layout, strict=True)):
        return None
    try:
        problem = from_layouts(f"{inputs}->{out}", layouts)
        return compile(problem) if problem.flops >= WORTH else None
    except KernelCheckError:  # a bug of ours, which RECURRA_CHECK=1 looks for
        raise
    except RecurraError as error:
        why = f"{error.what} ({error.facts})" if error.facts else error.what
        tell_once(f"{labels} of {', '.join(map(str, shapes))} has no kernel: {why}")
        return None


def _lettered(labels: str) -> str:
    """Rename labels to a, b, c, .. in order of first mention: a backend's may be capitals."""
    known: dict[str, str] = {}
    for letter in labels:
        if letter.isalpha():
            known.setdefault(letter, chr(ord("a") + len(known)))
    return labels.translate(str.maketrans(known))


def measure_in_turns(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the microseconds of a call of each, measured in turns.

    A backend may use several threads, and the machine may be shared: of wall-clock time and the
    process's CPU time, returns those in which the first call does worse.
    """
    times = np.empty((ROUNDS, 2, len(calls)))  # both clocks
    begin, k = time.perf_counter(), 0
    while k < ROUNDS and (k < 2 or time.perf_counter() - begin < ENOUGH_S):
        for j, call in enumerate(calls):
            start, start_cpu, runs = time.perf_counter(), time.process_time(), 0
            spent = 0.0
            while not runs or spent < SPAN_S:
                call()
                runs, spent = runs + 1, time.perf_counter() - start
            times[k, :, j] = spent / runs, (time.process_time() - start_cpu) / runs
        k += 1
    fastest = times[:k].min(axis=0)
    return [float(t) * 1e6 for t in min(fastest, key=lambda t: t[1] / t[0])]


def gain(about: str, measure: Callable[[], list[float]]) -> float:
    """Return theirs / ours of the microseconds that `measure` returns for some code.

    `about` is the key of the code. Measured once for a processor, and cached beside the kernels.
    """
    with suppress(Exception):  # no file, or a damaged one: it is measured again
        known = json.loads(_gain_file(about).read_text())
        if known["about"] == about:
            return known["theirs_us"] / known["ours_us"]
    ours_us, theirs_us = measure()
    text = json.dumps({"about": about, "ours_us": ours_us, "theirs_us": theirs_us})
    with suppress(OSError, RecurraError):  # it is measured again the next time
        place = _gain_file(about)
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic_write.replace_unsynced(place, [text.encode()], 0o666)
    return theirs_us / ours_us


def _gain_file(about: str) -> Path:
    digest = hashlib.sha256(about.encode()).hexdigest()[:24]
    return kernel_store.folder() / cpu.kind() / "code" / f"{digest}.json"


def choice(kernel: Contraction, ours_us: float, theirs_us: float) -> KernelChoice:
    p = kernel.problem
    sizes = " ".join(f"{i}={n}" for i, n in p.sizes)
    return KernelChoice(p.statement, sizes, kernel.nest.order, ours_us, theirs_us)


class KernelHandler:
    """A kernel as XLA calls it: the function at `address` takes a call frame and returns no error.

    `version` is the version of XLA's interface that the handler reports.
    """

    def __init__(self, kernel: Contraction, version: tuple[int, int]) -> None:
        self.kernel = kernel
        address = kernel.kernel.address
        assert address is not None, "the nest is not parallel"
        self.code = Code(_assembled(address, len(kernel.problem.inputs), version))
        self.address = self.code.address


EXTENSION, ARGS, RETS = 8, 72, 112  # in XLA_FFI_CallFrame: pointers to the extension and to arrays
KIND, METADATA = 8, 24  # in XLA_FFI_Metadata_Extension
MAJOR, MINOR = 24, 28  # in XLA_FFI_Metadata, of its api_version
DATA = 24  # in XLA_FFI_Buffer


def _assembled(kernel: int, inputs: int, version: tuple[int, int]) -> bytes:
    """Assemble a function of the frame in rdi: store the version if XLA queries it, else call."""
    store = _load(RAX, RAX, METADATA)
    store += bytes((0xC7, 0x40, MAJOR)) + le32(version[0])  # mov dword [rax + ..], ..
    store += bytes((0xC7, 0x40, MINOR)) + le32(version[1])
    store += b"\x31\xc0\xc3"  # xor eax, eax; ret
    query = bytes((0x83, 0x78, KIND, 1, 0x75, len(store))) + store  # cmp dword [rax + ..], 1; jne
    code = _load(RAX, RDI, EXTENSION) + b"\x48\x85\xc0"  # test rax, rax
    code += bytes((0x74, len(query))) + query  # jz
    code += _load(R10, RDI, ARGS) + _load(R11, RDI, RETS)
    for k, r in enumerate(ARGUMENTS[: inputs + 1]):
        code += _load(RAX, R10, 8 * k) if k < inputs else _load(RAX, R11, 0)
        code += _load(r, RAX, DATA)
    code += b"\x48\x83\xec\x08"  # sub rsp, 8
    code += b"\x48\xb8" + kernel.to_bytes(8, "little") + b"\xff\xd0"  # call
    return code + b"\x48\x83\xc4\x08\x31\xc0\xc3"  # add rsp, 8; xor eax, eax; ret


def _load(to: int, base: int, offset: int) -> bytes:
    """mov to, [base + offset]"""
    return bytes((0x48 | to >> 3 << 2 | base >> 3, 0x8B, 0x40 | (to & 7) << 3 | base & 7, offset))


def rows(choices: Sequence[KernelChoice]) -> list[dict[str, object]]:
    """Return the rows of a report's table."""
    return [
        {
            "contraction": c.statement,
            "sizes": c.sizes,
            "schedule": c.order,
            "us": round(c.ours_us, 1),
            "backend's us": round(c.theirs_us, 1),
            "gain": round(c.gain, 2),
            "code's gain": None if c.inside is None else round(c.inside, 2),
            "used": c.taken,
        }
        for c in choices
    ]
