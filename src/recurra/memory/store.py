"""Store: memory that keeps several points of an equation, one rule per dim of its domain.

block: every point has its slot.  window(n): the last n points, point q at slot q mod n.
folded: only the current point (no axis).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from recurra.ir.expr import Expr
from recurra.ir.types import Type

Kind = Literal["block", "window", "folded"]


@dataclass(frozen=True)
class Axis:
    """How one dim is laid out: `slots` positions; a block starts at point `lo`."""

    dim: str
    kind: Kind
    slots: int
    lo: int = 0
    size: Expr | int = 0  # the extent as written, for people

    def __str__(self) -> str:
        if self.kind == "folded":
            return f"{self.dim}: 1"
        return (
            f"{self.dim}: {self.size}"
            if self.kind == "block"
            else f"{self.dim}: window {self.slots}"
        )


@dataclass(frozen=True)
class Store:
    """The memory of one equation: [slots of each axis that is not folded, *shape of a point]."""

    name: str
    axes: tuple[Axis, ...]
    type: Type
    output: bool = False
    given: bool = False  # filled by the caller before the program starts

    @property
    def kept(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.kind != "folded")

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return (*(a.slots for a in self.kept), *self.type.sizes(sizes))

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        total = self.type.nbytes(sizes)
        for a in self.kept:
            total *= a.slots
        return total

    def __str__(self) -> str:
        lead = ", ".join(map(str, self.kept)) or "point"
        return f"{self.name}: {lead} of {self.type}"
