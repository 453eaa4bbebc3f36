"""Declarations of the dims of a graph: the range of each, its role, and the dim it came from.

    dims t<T, tz<T//8 tiles of t, te<8 points of tz

Ranges and indices refer to a dim by its name, which carries no meaning: a user's dim may be `tz`.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Self

from recurra.ir.expr import Expr
from recurra.ir.types import Range

_SETS = {  # words of isl's notation, which ignores case
    "and", "or", "not", "implies", "exists", "min", "max", "mod", "floor", "ceil", "floord",
    "ceild", "infty", "infinity", "nan", "rat", "true", "false",
}  # fmt: skip
_TEXT = {*keyword.kwlist, "inf"}  # words of the text form, and of generated code


MAX_POINTS = 2**31 - 1  # the limit of a dim or an axis, because indices are i32


def is_word(name: str) -> bool:
    """Is this a legal name of a dim or bound in indices, sets and generated code?"""
    return name.isascii() and name.isidentifier() and not is_reserved(name)


def is_reserved(name: str) -> bool:
    """Is the name a keyword of isl's notation, of the text form or of generated code?"""
    return name in _TEXT or name.lower() in _SETS


class Role(Enum):
    """The role of a dim: written by the user, or derived by a pass from its parent dim.

    The suffix of the name tells a human reader what the dim is.
    """

    WRITTEN = "written", ""
    ADJOINT = "adjoint", "_"  # a second point of the parent, at which a cotangent is read
    TILES = "tiles", "z"
    CHUNKS = "chunks", "z"
    GROUPS = "groups", "z"  # of batch rows, stepped in turn
    POINTS = "points", "e"  # of one tile, chunk or group
    PREFIX = "prefix", "p"  # its first points, all at once
    STRIPS = "strips", "j"  # tiles of a range that ends at a point of the parent
    ROUNDS = "rounds", "r"
    WAVES = "waves", "w"  # diagonals

    suffix: str

    def __new__(cls, word: str, suffix: str) -> Self:
        role = object.__new__(cls)
        role._value_, role.suffix = word, suffix
        return role


@dataclass(frozen=True)
class Dim:
    """The declaration of a dim. Its parent may no longer be declared, as with rounds."""

    range: Range  # all of its points; equations may have fewer
    role: Role = Role.WRITTEN
    parent: str | None = None

    def __str__(self) -> str:
        of = "" if self.parent is None else f" {self.role.value} of {self.parent}"
        return f"{self.range}{of}"

    @property
    def name(self) -> str:
        return self.range.dim

    @property
    def hi(self) -> Expr | int:
        return self.range.hi

    def at(self, by: Mapping[str, Expr | int]) -> Dim:
        """The declaration with the ends of its range replaced."""
        return replace(self, range=self.range.at(by))


class Declarations:
    """Queries about the dims of a graph, by role and parent instead of by name."""

    dims: tuple[Dim, ...]

    @cached_property
    def declared(self) -> dict[str, Dim]:
        """The dims by name, in the user's order."""
        return {d.name: d for d in self.dims}

    def children(self, dim: str, *roles: Role) -> tuple[Dim, ...]:
        """The dims that passes derived from one, of the given roles or of any."""
        return tuple(d for d in self.dims if d.parent == dim and (not roles or d.role in roles))

    def first_of(self, dim: str) -> str:
        """The dim that this adjoint dim was made from, or the dim itself if it is no adjoint."""
        d = self.declared[dim]
        return dim if d.role is not Role.ADJOINT or d.parent is None else self.first_of(d.parent)

    def adjoints(self, dim: str) -> tuple[str, ...]:
        """The adjoint dims of a dim, those of its adjoints included, in order of declaration."""
        adjoints = (d.name for d in self.dims if d.role is Role.ADJOINT)
        return tuple(x for x in adjoints if self.first_of(x) == dim)

    def points_of(self, dim: str) -> Dim | None:
        """The dim over the points of one tile, chunk or group, if `dim` counts those."""
        return next(iter(self.children(dim, Role.POINTS)), None)

    def halves(self, dim: str) -> tuple[Dim, Dim] | None:
        """The two dims that one was split into: its tiles (chunks, groups) and their points."""
        pairs = ((d, self.points_of(d.name)) for d in self.children(dim))
        return next(((outer, inner) for outer, inner in pairs if inner is not None), None)
