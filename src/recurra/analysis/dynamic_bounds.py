"""A bound that the data set, row by row, as the compiler takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recurra.analysis.tracer import Tracer
from recurra.errors import Loc
from recurra.ir.expr import Expr
from recurra.ir.graph import Ref

NEVER = 2**30 - 35  # more points than any run has; prime, and with room above it in an i32


class Readable(Protocol):
    """A tensor of the program, whose equation may yet be given another name."""

    @property
    def ref(self) -> Ref: ...


@dataclass(frozen=True, eq=False)
class Until:
    """`tensor` ends a row at the first point where it holds, from point `first` on."""

    tensor: Readable
    program: Tracer
    first: Expr | int
    most: int  # NEVER: no limit
    loc: Loc | None
    every: int = 0  # steps after which a loop asks; 0: as is best where it runs

    @property
    def done(self) -> Ref:
        """The tensor's equation, by the name that it has now."""
        return self.tensor.ref

    def __repr__(self) -> str:
        most = "" if self.most == NEVER else f", max={self.most}"
        return f"until({self.done}, from_={self.first}{most})"
