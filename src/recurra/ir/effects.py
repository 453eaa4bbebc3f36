"""Effects of a program beside computing: recorded while it is written, served by compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recurra.errors import Loc
from recurra.ir.expr import Expr


@dataclass(frozen=True)
class Checkpoint:
    """Saves parameters, as they are at each point where `when` holds, into the folder `path`.

    `params` pairs the name in the module tree (`body.layers.0.weight`) with the equation.
    """

    when: Expr
    path: str
    params: tuple[tuple[str, str], ...]
    loc: Loc | None = field(default=None, compare=False, repr=False)

    def renamed(self, name: Callable[[str], str]) -> Checkpoint:
        """The effect after equations have got other names."""
        return replace(self, params=tuple((key, name(p)) for key, p in self.params))


@dataclass(frozen=True)
class ProgramPart:
    """A part of a program: the equations whose values at the end of a run belong to it, arrays and
    what is told of it, as JSON."""

    values: Sequence[str]
    arrays: Mapping[str, Any]
    told: Mapping[str, Any]


@dataclass(frozen=True)
class Export:
    """A file of a run's folder with a part of the program, to be used without the program.

    `cut` finds the part, for given bounds; it raises RecurraError where there is none.
    """

    file: str
    format: str
    cut: Callable[[Mapping[str, int]], ProgramPart]
