"""Stores: memory for several points of an equation, with one kind of axis for each dim.

- full: every point has its slot
- circular(n): the last n points, point q at slot q mod n
- scalar: only the current point (no axis)
- tiled(n): full, with n points at a time adjacent
- mirrored(n): circular, of one tile of n points; its first `room` points are mirrored after the
  last, so that a range of as many points is contiguous wherever it starts
- per_point: full, with one buffer per point, which the host chooses
- strided(s): the points lo, lo + s, ..; the others are written to the first slot
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from recurra.ir.expr import Expr
from recurra.ir.types import Type

Kind = Literal["full", "circular", "scalar", "tiled", "mirrored", "per_point", "strided"]

_SUFFIX = "[]"  # no variable's name has it


def store_key(name: str) -> str:
    """The name of a store among the variables that loops carry."""
    return name + _SUFFIX


def is_store_key(name: str) -> bool:
    return name.endswith(_SUFFIX)


@dataclass(frozen=True)
class StoredAxis:
    """The layout of one dim: `slots` positions; slot 0 of a full one is point `lo`."""

    dim: str
    kind: Kind
    slots: int
    lo: int = 0
    size: Expr | int = 0  # the extent as written, for people
    tile: int = 1  # points of a tile
    room: int = 0  # points that are mirrored
    step: int = 1  # of a strided axis: from point to point

    def __str__(self) -> str:
        match self.kind:
            case "scalar":
                return f"{self.dim}: 1"
            case "full":
                return f"{self.dim}: {self.size}"
            case "tiled":
                return f"{self.dim}: {self.size} in tiles of {self.tile}"
            case "per_point":
                return f"{self.dim}: {self.size}, each apart"
            case "strided":
                return f"{self.dim}: {self.size} in steps of {self.step}"
            case "mirrored" if self.room:
                return f"{self.dim}: window {self.slots}, {self.room} of it twice"
            case _:
                return f"{self.dim}: window {self.slots}"


@dataclass(frozen=True)
class Store:
    """The memory of one equation: [slots of each axis that is not scalar, *shape of a point].

    A tiled or mirrored axis has its tiles there, and the place in a tile is a trailing axis.
    `order` has the positions of that place (0) and of the axes of a point (1, 2, ..).
    """

    name: str
    axes: tuple[StoredAxis, ...]
    type: Type
    output: bool = False
    given: bool = False  # an input: filled by the caller before the program starts
    order: tuple[int, ...] = ()
    room: int = 0  # of an offloaded store: the points in memory at once

    @property
    def kept(self) -> tuple[StoredAxis, ...]:
        return tuple(a for a in self.axes if a.kind != "scalar")

    @property
    def tiled(self) -> StoredAxis | None:
        return next((a for a in self.axes if a.kind in ("tiled", "mirrored")), None)

    @property
    def per_point(self) -> StoredAxis | None:
        return next((a for a in self.axes if a.kind == "per_point"), None)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of one buffer."""
        lead = (1 if a.kind == "per_point" else a.slots // a.tile for a in self.kept)
        return (*lead, *self.point_shape(sizes))

    def point_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The lengths of the axes after those of points."""
        point = self.type.sizes(sizes)
        if self.tiled is None:
            return point
        lengths = (self.tiled.tile + self.tiled.room, *point)
        return tuple(lengths[k] for k in self.order)

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        return self.type.nbytes(sizes) * prod(a.slots + a.room for a in self.kept)

    def __str__(self) -> str:
        return f"{self.name}: {self.layout}"

    @property
    def layout(self) -> str:
        """The layout in words: its axes, and their order in a point."""
        lead = ", ".join(map(str, self.kept)) or "point"
        lead += f", {self.room} at once in memory" if self.room else ""
        order = ",".join(["place", *map(str, range(self.type.rank))][k] for k in self.order)
        return f"{lead} of {self.type}{f' as [{order}]' if order else ''}"


@dataclass(frozen=True)
class Home:
    """The place of an equation in the store of another equation, along that one's dim `dim`.

    Point z along `along` holds, on its axis `axis`, the `size` points of the store from size·z on;
    without such a dim, the first `size` points.
    """

    store: str
    dim: str
    along: str | None
    size: int
    axis: int
