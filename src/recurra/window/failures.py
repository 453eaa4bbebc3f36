"""Kernels that fail: their results must not be read, nor what would be computed from them."""

from __future__ import annotations

from collections.abc import Iterable

from recurra.errors import Loc
from recurra.window.task import Segment, Task, WindowError, overlap


class KernelError(WindowError):
    """A kernel raised; told to whoever first needs its result. `__cause__` is what it raised."""

    exit_code = 1


class UndeclaredWrite(KernelError):
    """A kernel wrote memory that it does not declare."""


class Spoiled:
    """Memory that failed kernels should have written, and why it was not.

    What owns it is held until it is written: it must not be given to somebody else meanwhile.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Segment, KernelError, object]] = []
        self._untold: dict[int, KernelError] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def nothing(self) -> bool:
        """Is all memory good, and has every failure been told?"""
        return not (self._parts or self._untold)

    def blame(self, reads: Iterable[Segment]) -> KernelError | None:
        """Why what is read is not there, if it is not."""
        reads = tuple(reads)
        return next((error for part, error, _ in self._parts if overlap(reads, (part,))), None)

    def spoil(self, task: Task, error: KernelError, owner: object, *, first: bool) -> None:
        """The task has not written what it should have; `first` if it raised the error itself."""
        self._parts += [(segment, error, owner) for segment in task.writes]
        if first:
            self._untold[id(error)] = error

    def mend(self, written: Iterable[Segment]) -> None:
        """Every byte of these has been written: that memory is good again."""
        for whole in written:
            self._parts = [
                (rest, error, owner)
                for part, error, owner in self._parts
                for rest in subtract(part, whole)
            ]

    def told(self, error: KernelError) -> KernelError:
        """Somebody hears of it now."""
        self._untold.pop(id(error), None)
        return error

    def untold(self) -> list[KernelError]:
        """Take the failures that nobody has been told of, oldest first."""
        errors = list(self._untold.values())
        self._untold.clear()
        return errors


def subtract(part: Segment, whole: Segment) -> list[Segment]:
    """The parts of one segment outside another."""
    left = Segment(part.start, max(0, min(part.stop, whole.start) - part.start))
    start = max(part.start, whole.stop)
    right = Segment(start, max(0, part.stop - start))
    return [s for s in (left, right) if s.size]


def failed(name: str, cause: BaseException, loc: Loc | None) -> KernelError:
    """The error for a kernel that raised `cause`, launched at `loc`."""
    if isinstance(cause, UndeclaredWrite):  # it says which kernel and where
        return cause
    error = KernelError(
        f"kernel {name} failed: {type(cause).__name__}: {cause}",
        facts="what it should have written, and what follows from that, has no value",
        loc=loc,
    )
    error.__cause__ = cause
    return error
