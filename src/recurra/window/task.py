"""Tasks: the segments of memory that a kernel reads and writes, and the resulting order.

    gemm(a, b) → c    reads 0x1000+4096, 0x2000+4096   writes 0x3000+4096

Two tasks must keep their order if one writes memory that the other reads or writes: read after
write, write after read, write after write. The paper (ACS, Algorithm 1) compares only the writes of
the new task with the window, and so misses read after write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral

from recurra.errors import RecurraError

MOST_THREADS = 1024  # of a window: more than a machine has cores
END = 2**64 - 1  # addresses are 64 bits wide; the last byte is never used


class WindowError(RecurraError):
    """An invalid task, trace, machine or use of a window."""


def is_count(value: object, most: float) -> bool:
    """Return whether a value is a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return 1 <= int(value) <= most


@dataclass(frozen=True, order=True)
class Segment:
    """The bytes start ≤ address < start + size of one flat address space.

    Allocations without addresses need a range of their own each. Raises WindowError if it does not
    fit into 64 bits.
    """

    start: int
    size: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.size < 0 or self.stop > END:
            raise WindowError(
                f"{self.start:#x} with {self.size} bytes is no segment of memory",
                facts=f"it must lie between 0 and {END:#x}",
            )

    @property
    def stop(self) -> int:
        """The first address after it."""
        return self.start + self.size

    def __str__(self) -> str:
        return f"{self.start:#x}+{self.size}"


MEMORY = Segment(0, END)  # the reads and writes of a task with unknown accesses


@dataclass(frozen=True)
class Task:
    """The name, reads and writes of one kernel launch. Empty segments are dropped."""

    name: str
    reads: tuple[Segment, ...] = ()
    writes: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple(s for s in self.reads if s.size))
        object.__setattr__(self, "writes", tuple(s for s in self.writes if s.size))

    def must_follow(self, earlier: Task) -> bool:
        """Return whether this task depends on an earlier one of the program."""
        return (
            overlap(self.reads, earlier.writes)  # read after write
            or overlap(self.writes, earlier.reads)  # write after read
            or overlap(self.writes, earlier.writes)  # write after write
        )

    def __str__(self) -> str:
        return " ".join([self.name, *_listed("reads", self.reads), *_listed("writes", self.writes)])


def barrier(name: str) -> Task:
    """Return a task that may access anything, and so keeps its order with all others."""
    return Task(name, (MEMORY,), (MEMORY,))


def overlap(some: Iterable[Segment], others: Iterable[Segment]) -> bool:
    """Return whether any two segments share a byte."""
    spans = [(o.start, o.stop) for o in others]
    return any(s.start < stop and start < s.stop for s in some for start, stop in spans)


def _listed(word: str, segments: tuple[Segment, ...]) -> list[str]:
    return [f"{word}={','.join(map(str, segments))}"] if segments else []
