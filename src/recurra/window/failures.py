"""Kernels that fail, and the memory that has no valid contents because of them."""

from __future__ import annotations

from collections.abc import Iterable

from recurra.errors import Loc
from recurra.window.task import Segment, Task, WindowError, overlap


class KernelError(WindowError):
    """A kernel raised `__cause__`; raised where its result is first needed."""

    exit_code = 1


class UndeclaredWrite(KernelError):
    """A kernel wrote memory that it does not declare."""


class PoisonedMemory:
    """Memory that failed kernels should have written, with their errors.

    Its owners are kept alive until it is written, so that it is not allocated again meanwhile.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Segment, KernelError, object]] = []
        self._unreported: dict[int, KernelError] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def is_clear(self) -> bool:
        """Return whether all memory is valid and every error has been reported."""
        return not (self._parts or self._unreported)

    def error_of(self, reads: Iterable[Segment]) -> KernelError | None:
        """Return the error of the first poisoned segment among these, if any."""
        reads = tuple(reads)
        return next((error for part, error, _ in self._parts if overlap(reads, (part,))), None)

    def poison(self, task: Task, error: KernelError, owner: object, *, first: bool) -> None:
        """Poison what a task should have written; `first` if it raised the error itself."""
        self._parts += [(segment, error, owner) for segment in task.writes]
        if first:
            self._unreported[id(error)] = error

    def validate(self, written: Iterable[Segment]) -> None:
        """Mark segments as valid, every byte of which has been written."""
        for whole in written:
            self._parts = [
                (rest, error, owner)
                for part, error, owner in self._parts
                for rest in subtract(part, whole)
            ]

    def report(self, error: KernelError) -> KernelError:
        """Mark an error as reported, and return it."""
        self._unreported.pop(id(error), None)
        return error

    def take_unreported(self) -> list[KernelError]:
        """Return the errors that were not reported, oldest first, and mark them as reported."""
        errors = list(self._unreported.values())
        self._unreported.clear()
        return errors


def subtract(part: Segment, whole: Segment) -> list[Segment]:
    """Return the parts of one segment outside another."""
    left = Segment(part.start, max(0, min(part.stop, whole.start) - part.start))
    start = max(part.start, whole.stop)
    right = Segment(start, max(0, part.stop - start))
    return [s for s in (left, right) if s.size]


def failed(name: str, cause: BaseException, loc: Loc | None) -> KernelError:
    """Return the error for a kernel that raised `cause`, launched at `loc`."""
    if isinstance(cause, UndeclaredWrite):  # it names the kernel and the line
        return cause
    error = KernelError(
        f"kernel {name} failed: {type(cause).__name__}: {cause}",
        facts="what it should have written, and what follows from that, has no value",
        loc=loc,
    )
    error.__cause__ = cause
    return error
