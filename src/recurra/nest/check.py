"""A check of a new kernel in a child process, so that a bug in it kills nothing else.

The child places every tensor against protected pages, once at its end and once at its beginning,
fills it with small integers, runs the kernel and compares with the oracle, exactly.
`python -m recurra.nest.check` is the child: it reads a JSON object and prints the first mistake.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import as_strided

from recurra.errors import RecurraError
from recurra.nest.codegen import generate
from recurra.nest.dtypes import DTYPES
from recurra.nest.executable_memory import Code, NestKernel, encode, function, linked
from recurra.nest.loops import Nest, parse
from recurra.nest.problem import NestProblem, TensorAccess
from recurra.nest.reference import Array, evaluate, sampled
from recurra.nest.target import TARGETS
from recurra.support.workers.processes import environment

TIMEOUT_S = 300.0
MANY, SOME = 2**27, 500  # operations, elements


class KernelCheckError(RecurraError):
    """Generated code that crashes, leaves its tensors, or computes a wrong result."""

    exit_code = 1


def validate(nest: Nest, kernel: NestKernel) -> None:
    """Raise KernelCheckError unless the kernel computes the nest's problem, in a child process."""
    own = kernel.program.target in TARGETS
    validate_code(nest, kernel.program.target, encode(kernel.program) if own else b"")


def validate_code(nest: Nest, target: str, code: bytes) -> None:
    """Do the same for bytes of machine code; without any, the child compiles with LLVM."""
    task = {"nest": str(nest), "target": target, "code": code.hex()}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "recurra.nest.check"],
            input=json.dumps(task),
            env=environment(RECURRA_CHECK="0"),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise _wrong(nest, target, f"it did not end within {TIMEOUT_S:.0f} s") from None
    if done.returncode < 0:
        raise _wrong(nest, target, f"it died of {signal.Signals(-done.returncode).name}")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise _wrong(nest, target, f"the child process failed: {last}")
    if done.stdout.strip():
        raise _wrong(nest, target, done.stdout.strip())


def _wrong(nest: Nest, target: str, facts: str) -> KernelCheckError:
    return KernelCheckError(
        f"the {target} code of {nest.order!r} is wrong: {nest.problem.statement}",
        facts=facts,
        hint="this is a bug of ours; another schedule or backend may do meanwhile",
    )


def main() -> None:
    task = json.load(sys.stdin)
    nest, code = parse(task["nest"]), bytes.fromhex(task["code"])
    if code:
        tensors = len(nest.problem.inputs) + 1
        loaded = Code(linked(code) if nest.packs else code)
        call = function(loaded.address, tensors, loaded)
    else:
        from recurra.nest.llvm import LlvmKernel, host

        call = LlvmKernel(generate(nest, host())).call
    for at_end in (True, False):
        if mistake := compare(nest, call, at_end=at_end):
            print(mistake)
            return


def compare(nest: Nest, call: Callable[..., None], *, at_end: bool) -> str:
    """Describe the first mistake of one run of a kernel; "" if there is none."""
    return Examination(nest.problem, at_end=at_end).mistake(call)


class Examination:
    """Arrays of a problem and the oracle's result, with which kernels are compared.

    Of large problems, SOME elements are compared, and the memory between all of them. Arrays end,
    or begin, at protected pages.
    """

    def __init__(self, problem: NestProblem, *, at_end: bool) -> None:
        random = np.random.default_rng(1)
        self.name = problem.output.name
        self.inputs = [guarded(t, random, at_end=at_end)[0] for t in problem.inputs]
        self.out, self.memory = guarded(problem.output, random, at_end=at_end)
        self.before, self.expected = self.memory.copy(), self.memory.copy()
        start = (_address(self.out) - _address(self.memory)) // self.memory.itemsize
        strides = self.out.strides
        self.oracle = as_strided(self.expected[start:], self.out.shape, strides)
        self.unsampled = np.zeros(self.memory.size, np.bool_)
        if problem.flops < MANY:
            evaluate(problem, self.inputs, self.oracle)
        else:
            strides = tuple(s // self.memory.itemsize for s in strides)
            elements = as_strided(self.unsampled[start:], self.out.shape, strides)
            elements[...] = ~sampled(problem, self.inputs, self.oracle, SOME)

    def mistake(self, call: Callable[..., None]) -> str:
        """Run a kernel and describe its first mistake; "" if there is none."""
        self.memory[:] = self.before
        call(*map(_address, (*self.inputs, self.out)))
        self.expected[self.unsampled] = self.memory[self.unsampled]
        if np.array_equal(self.memory, self.expected):
            return ""
        wrong = np.argwhere(self.out != self.oracle)
        if not len(wrong):
            return f"it writes between the elements of {self.name}"
        at = tuple(int(x) for x in wrong[0])
        return (
            f"{len(wrong)} of {self.out.size} elements differ; {self.name}{list(at)} is "
            f"{self.out[at]}, not {self.oracle[at]}, for integers from -4 to 4"
        )


def _address(array: Array) -> int:
    return array.__array_interface__["data"][0]


def guarded(
    access: TensorAccess, random: np.random.Generator, *, at_end: bool
) -> tuple[Array, Array]:
    """Return an array of integers from -4 to 4 that ends, or begins, at a protected page.

    Returns the array, with the access's strides, and its memory.
    """
    dtype = DTYPES[access.dtype]
    item, (low, high) = dtype.itemsize, access.span
    size = (high - low + 1) * item
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, room + 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    protect = ctypes.CDLL(None).mprotect
    for edge in (start, start + mmap.PAGESIZE + room):
        assert protect(ctypes.c_void_p(edge), mmap.PAGESIZE, 0) == 0, "mprotect failed"
    offset = mmap.PAGESIZE + (room - size if at_end else 0)
    memory = np.frombuffer(pages, dtype, high - low + 1, offset)
    memory[:] = random.integers(-4, 5, memory.size)
    strides = [s * item for s in access.strides]
    return as_strided(memory[-low:], access.shape, strides), memory


if __name__ == "__main__":
    main()
