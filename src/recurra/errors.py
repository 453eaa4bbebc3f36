"""The mistakes a user can make, and how they are told: what, where, the two facts, one way out.

DomainError: x[t+1] reads past the end of t
  --> train.py:42   y[t] = x[t+1] * 0.5
  x is defined for 0 <= t < T, but this read needs t+1 < T; at t=3, T=4 it asks for x[4]
  hint: guard it with a branch, or give y the bound T-1
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

_PASSED = (str(Path(__file__).parent), contextlib.__file__, functools.__file__, "<")  # nobody's
_LIBRARIES = {"jax", "jaxlib", "numpy", "torch"}  # what may stand between the program and us


@dataclass(frozen=True)
class Loc:
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{Path(self.file).name}:{self.line}" + (f"   {text}" if text else "")


def caller() -> FrameType:
    """The frame of what called the function that asks."""
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back
    assert frame is not None
    return frame


def here() -> Loc | None:
    """The line the user wrote."""
    frame = users_frame()
    return frame and Loc(frame.f_code.co_filename, frame.f_lineno)


def users_frame() -> FrameType | None:
    """The innermost frame that is neither ours nor an array library's; none of a command's own."""
    frame = inspect.currentframe()
    while frame is not None:
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if module == "recurra.cli":  # who calls that is a shell
            return None
        if not file.startswith(_PASSED) and package not in _LIBRARIES:
            return frame
        frame = frame.f_back
    return None


def either(shell: str, program: str) -> str:
    """The words for an option: as a command has it, or, called from Python, as an argument."""
    return shell if users_frame() is None else program


@contextmanager
def at_the_users_line() -> Generator[None]:
    """Tell a mistake that has no line of its own at the line of the user's call."""
    try:
        yield
    except RecurraError as error:
        if error.loc is None:
            RecurraError.__init__(error, error.what, facts=error.facts, hint=error.hint, loc=here())
        raise


class RecurraError(Exception):
    """Base of every mistake that is the user's to mend; `str` is the whole message."""

    exit_code = 2  # of a command that ends by it

    def __init__(self, what: str, *, facts: str = "", hint: str = "", loc: Loc | None = None):
        self.what, self.facts, self.hint, self.loc = what, facts, hint, loc
        lines = [what]
        if loc is not None:
            lines.append(f"  --> {loc}")
        if facts:
            lines.append(f"  {facts}")
        if hint:
            lines.append(f"  hint: {hint}")
        super().__init__("\n".join(lines))

    @classmethod
    def at_user_line(cls, what: str, *, facts: str = "", hint: str = "") -> Self:
        """The error at the line that the user wrote, which is being executed."""
        return cls(what, facts=facts, hint=hint, loc=here())


class ShapeError(RecurraError):
    """Shapes, types or labels that do not fit."""


class DomainError(RecurraError):
    """A read outside its source's domain, or branches that leave a point undefined."""


class NoSuchName(RecurraError, AttributeError):
    """A word that is none of ours; an AttributeError too, as `hasattr` expects."""


def reraise_property_error(owner: object, name: str) -> None:
    """Raise the AttributeError inside a property again: Python then asks `__getattr__` for it."""
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)


class ScheduleError(RecurraError):
    """Equations that have no order."""


class PlanError(RecurraError):
    """No memory plan within the budget."""


class Interrupted(RecurraError):
    """A run that its user has stopped (Ctrl-C)."""

    exit_code = 130  # as a shell tells it: 128 + SIGINT


class PassError(RecurraError):
    """A pass that changes the answer: our mistake, told like the user's."""

    exit_code = 1


class NotFiniteError(RecurraError):
    """A result that is NaN or inf, and the op that made it so out of operands that are not."""

    exit_code = 1


class BackendError(RecurraError):
    """A backend cannot run the program."""
