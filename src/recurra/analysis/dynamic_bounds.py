"""The declaration, for the compiler, of a bound that the data determine row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recurra.analysis.graph_builder import GraphBuilder
from recurra.errors import Loc
from recurra.ir.expr import Expr
from recurra.ir.graph import Ref

NEVER = 2**30 - 35  # more points than any run has: a prime well below the largest i32


class Readable(Protocol):
    """A tensor of the program, whose equation may still be renamed."""

    @property
    def ref(self) -> Ref: ...


@dataclass(frozen=True, eq=False)
class Until:
    """A bound that ends each row at the first point, from `first` on, where `tensor` holds."""

    tensor: Readable
    program: GraphBuilder
    first: Expr | int
    most: int  # NEVER: no limit
    loc: Loc | None
    every: int = 0  # steps between checks of whether all rows have ended; 0: chosen by the backend

    @property
    def done(self) -> Ref:
        """The read of the tensor's equation, by its current name."""
        return self.tensor.ref

    def __repr__(self) -> str:
        most = "" if self.most == NEVER else f", max={self.most}"
        return f"until({self.done}, from_={self.first}{most})"
