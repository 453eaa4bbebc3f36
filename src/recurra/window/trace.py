"""Traces: the kernel launches of a program, with their resources, times, reads and writes.

    # ant, one step
    quat_mul ctas=96 threads=128 registers=40 shared=0 us=11.5 reads=0x0+512 writes=0x200+512
    norm ctas=12 threads=256 registers=24 shared=1024 us=4 reads=0x200+512 writes=0x400+64 host

One kernel a line, in program order; `host` marks that the program waits for its result, as in
control flow that depends on data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from recurra.window.task import Segment, Task, WindowError

WARP = 32
_NUMBERS = ("ctas", "threads", "registers", "shared", "us")
_LISTS = ("reads", "writes")


@dataclass(frozen=True)
class Kernel:
    """A launch of `ctas` blocks, each of `threads` threads that hold `registers` registers.

    shared   bytes of shared memory per block
    us       duration of one block, µs
    host     the program waits for the result before its next launch
    Raises WindowError for impossible numbers.
    """

    name: str
    ctas: int = 1
    threads: int = 256
    registers: int = 32
    shared: int = 0
    us: float = 10.0
    reads: tuple[Segment, ...] = ()
    writes: tuple[Segment, ...] = ()
    host: bool = False

    def __post_init__(self) -> None:
        if not self.name or not self.name[0].isprintable() or re.search(r"[\s#=]", self.name):
            raise WindowError(
                f"{self.name!r} is no name of a kernel", facts="it has spaces, # or =, or is empty"
            )
        least = {"ctas": 1, "threads": 1, "registers": 1, "shared": 0}
        for field, low in least.items():
            if getattr(self, field) < low:
                raise WindowError(
                    f"kernel {self.name}: {field}={getattr(self, field)}",
                    facts=f"a launch has at least {low}",
                )
        if not (math.isfinite(self.us) and self.us > 0):
            raise WindowError(
                f"kernel {self.name}: us={self.us}", facts="one block runs for some time, in µs"
            )

    @property
    def warps(self) -> int:
        """Warps per block."""
        return -(-self.threads // WARP)

    @property
    def task(self) -> Task:
        """The task of a kernel: its name, reads and writes."""
        return Task(self.name, self.reads, self.writes)

    def __str__(self) -> str:
        words = [self.name]
        words += [f"{field}={_number(getattr(self, field))}" for field in _NUMBERS]
        words += [
            f"{field}={','.join(map(str, getattr(self, field)))}"
            for field in _LISTS
            if getattr(self, field)
        ]
        return " ".join(words + ["host"] * self.host)


@dataclass(frozen=True)
class Trace:
    """Kernels in program order. `str` is its text, which `parse` reads."""

    name: str
    kernels: tuple[Kernel, ...]

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of the kernels."""
        return tuple(kernel.task for kernel in self.kernels)

    @cached_property
    def upstream(self) -> tuple[tuple[int, ...], ...]:
        """The earlier kernels that each kernel must follow directly: see `dependences`."""
        return dependences(self.tasks)

    def __len__(self) -> int:
        return len(self.kernels)

    def __str__(self) -> str:
        return "\n".join([f"# {self.name}", *map(str, self.kernels), ""])


def dependences(tasks: Sequence[Task]) -> tuple[tuple[int, ...], ...]:
    """Return the direct dependences of every task; the others follow by transitivity.

    A read follows the last write of each byte; a write follows the reads since then, or, if there
    are none, the last write.
    """
    cuts = sorted({x for t in tasks for s in (*t.reads, *t.writes) for x in (s.start, s.stop)})
    place = {x: k for k, x in enumerate(cuts)}
    writer: list[int | None] = [None] * len(cuts)
    readers: list[list[int]] = [[] for _ in cuts]
    found: list[tuple[int, ...]] = []
    for at, task in enumerate(tasks):
        reads, writes = _pieces(task.reads, place), _pieces(task.writes, place)
        upstream = {writer[piece] for piece in reads}
        for piece in writes:
            upstream |= set(readers[piece]) or {writer[piece]}
        for piece in reads:
            readers[piece].append(at)
        for piece in writes:
            writer[piece], readers[piece] = at, []
        found.append(tuple(sorted(u for u in upstream if u is not None)))
    return tuple(found)


def _pieces(segments: Iterable[Segment], place: dict[int, int]) -> set[int]:
    return {k for s in segments for k in range(place[s.start], place[s.stop])}


def parse(text: str, name: str = "trace") -> Trace:
    """Parse the text of a trace; raise WindowError with a line that is no kernel."""
    kernels: list[Kernel] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words and line.startswith("# ") and number == 1:
            name = line[2:].strip()
        if not words:
            continue
        try:
            kernels.append(_kernel(words))
        except (ValueError, WindowError) as error:
            raise WindowError(
                f"line {number} is no kernel: {line.strip()}",
                facts=str(error),
                hint="a line is like  gemm ctas=64 threads=256 registers=40 shared=0 us=12.5 "
                "reads=0x0+4096 writes=0x1000+64",
            ) from None
    if not kernels:
        raise WindowError("a trace without kernels", hint="write one kernel a line")
    return Trace(name, tuple(kernels))


def _kernel(words: list[str]) -> Kernel:
    kernel = Kernel(words[0])
    for word in words[1:]:
        field, _, value = word.partition("=")
        if field == "us":
            kernel = replace(kernel, us=float(value))
        elif field in _NUMBERS:
            kernel = replace(kernel, **{field: int(value)})
        elif field in _LISTS:
            kernel = replace(kernel, **{field: tuple(map(_segment, value.split(",")))})
        elif word == "host":
            kernel = replace(kernel, host=True)
        else:
            raise ValueError(f"{field!r} is none of {', '.join([*_NUMBERS, *_LISTS, 'host'])}")
    return kernel


def _segment(text: str) -> Segment:
    start, plus, size = text.partition("+")
    if not plus:
        raise ValueError(f"{text!r} is no segment: write start+size, such as 0x1000+4096")
    return Segment(int(start, 0), int(size, 0))


def _number(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
