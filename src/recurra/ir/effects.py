"""Side effects of a program: recorded while it is traced, carried out by the compiled program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recurra.errors import Loc
from recurra.ir.expr import Expr


@dataclass(frozen=True)
class Checkpoint:
    """Save parameters to the folder `path` at each point where `when` holds.

    `params` pairs the name in the module tree (`body.layers.0.weight`) with the equation.
    """

    when: Expr
    path: str
    params: tuple[tuple[str, str], ...]
    loc: Loc | None = field(default=None, compare=False, repr=False)

    def renamed(self, name: Callable[[str], str]) -> Checkpoint:
        """Return the effect with equations renamed by `name`."""
        return replace(self, params=tuple((key, name(p)) for key, p in self.params))


@dataclass(frozen=True)
class ProgramPart:
    """A part of a program: equations whose final values belong to it, constant arrays, and
    metadata as JSON (`told`)."""

    values: Sequence[str]
    arrays: Mapping[str, Any]
    told: Mapping[str, Any]


@dataclass(frozen=True)
class Export:
    """A file in a run's folder that holds a part of the program, usable without the program.

    `cut` returns the part for given bounds; it raises RecurraError if there is none.
    """

    file: str
    format: str
    cut: Callable[[Mapping[str, int]], ProgramPart]
