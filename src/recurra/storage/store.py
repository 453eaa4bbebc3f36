"""Store: memory that keeps several points of an equation, one rule per dim of its domain.

block: every point has its slot.  window(n): the last n points, point q at slot q mod n.
folded: only the current point (no axis).  tiled(n): as block, n points at a time side by side.
ring(n): as window, one tile of n points; its first `room` have a second place behind the last, so
that a range of as many lies in one piece wherever it starts.
apart: as block, every point in a buffer of its own, which the host chooses.
strided(s): as block, of the points lo, lo + s, .. alone; the others are written to the first slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from recurra.ir.expr import Expr
from recurra.ir.types import Type

Kind = Literal["block", "window", "folded", "tiled", "ring", "apart", "strided"]

_KEY = "[]"  # no variable's name ends so


def store_key(name: str) -> str:
    """The name of a store among variables that travel from step to step."""
    return name + _KEY


def is_store_key(name: str) -> bool:
    return name.endswith(_KEY)


@dataclass(frozen=True)
class StoredAxis:
    """The layout of one dim: `slots` positions; a block starts at point `lo`."""

    dim: str
    kind: Kind
    slots: int
    lo: int = 0
    size: Expr | int = 0  # the extent as written, for people
    tile: int = 1  # points of a tile
    room: int = 0  # of a ring: points that have a second place
    step: int = 1  # of a strided one, from point to point

    def __str__(self) -> str:
        if self.kind == "folded":
            return f"{self.dim}: 1"
        match self.kind:
            case "block":
                return f"{self.dim}: {self.size}"
            case "tiled":
                return f"{self.dim}: {self.size} in tiles of {self.tile}"
            case "apart":
                return f"{self.dim}: {self.size}, each apart"
            case "strided":
                return f"{self.dim}: {self.size} in steps of {self.step}"
            case "ring" if self.room:
                return f"{self.dim}: window {self.slots}, {self.room} of it twice"
            case _:
                return f"{self.dim}: window {self.slots}"


@dataclass(frozen=True)
class Store:
    """The memory of one equation: [slots of each axis that is not folded, *shape of a point].

    Of a tiled axis, or a ring, the tiles are counted there, and the place in a tile is one of the
    axes behind: `order` says where that (0) and the axes of a point (1, 2, ..) are.
    """

    name: str
    axes: tuple[StoredAxis, ...]
    type: Type
    output: bool = False
    given: bool = False  # filled by the caller before the program starts
    order: tuple[int, ...] = ()
    room: int = 0  # of an offloaded one: so many points are in memory at once

    @property
    def kept(self) -> tuple[StoredAxis, ...]:
        return tuple(a for a in self.axes if a.kind != "folded")

    @property
    def tiled(self) -> StoredAxis | None:
        return next((a for a in self.axes if a.kind in ("tiled", "ring")), None)

    @property
    def apart(self) -> StoredAxis | None:
        return next((a for a in self.axes if a.kind == "apart"), None)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of one buffer."""
        lead = (1 if a.kind == "apart" else a.slots // a.tile for a in self.kept)
        return (*lead, *self.behind(sizes))

    def behind(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The axes behind those of points."""
        point = self.type.sizes(sizes)
        if self.tiled is None:
            return point
        every = (self.tiled.tile + self.tiled.room, *point)
        return tuple(every[k] for k in self.order)

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        total = self.type.nbytes(sizes)
        for a in self.kept:
            total *= a.slots + a.room
        return total

    def __str__(self) -> str:
        return f"{self.name}: {self.layout}"

    @property
    def layout(self) -> str:
        """The layout in words: the dims that are kept, and the order of axes."""
        lead = ", ".join(map(str, self.kept)) or "point"
        lead += f", {self.room} at once in memory" if self.room else ""
        order = ",".join(["place", *map(str, range(self.type.rank))][k] for k in self.order)
        return f"{lead} of {self.type}{f' as [{order}]' if order else ''}"


@dataclass(frozen=True)
class Home:
    """The place of an equation without a store: in another's, along its own `dim`.

    Its point z along `along` is `size` points there, from size·z on: those of one of its axes. One
    without such a dim is the first of them.
    """

    store: str
    dim: str
    along: str | None
    size: int
    axis: int
