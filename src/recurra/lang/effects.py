"""What a program does beside computing: recorded while it is written, served by compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

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
