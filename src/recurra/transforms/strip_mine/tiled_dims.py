"""Split a dim in two: one that counts tiles, and one that counts the points of a tile.

    d[t<T] = mul(c, o)                    d[tz<T//5,te<5] = mul(c, o[5*tz+te])
    G = sum(d[0:T], axes=(0,))      →     G = sum(d[0:T//5,0:5], axes=(0, 1))

Tiles and blocks of unordered dims, groups of rows that take turns, and chunks of peeled points are
split so. A tile has one static size, which divides the range. An input keeps the layout that the
caller gives it: it is never a member, and is read at 5*tz+te.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from recurra.ir.dims import Dim, Role
from recurra.ir.expr import (
    Expr,
    Ext,
    FloorDiv,
    Lin,
    Modulo,
    Sym,
    div,
    lin,
    minimum,
    mod,
    rebuild,
    substitute,
)
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, full_length, index_symbols
from recurra.ir.types import Domain, Range, Type
from recurra.ops.reduction import Reduction


@dataclass(frozen=True)
class Tile:
    """`dim` of `members` in tiles of `size`; `dims` count the tiles, and the points of one."""

    dim: str
    size: int
    members: frozenset[str]
    dims: tuple[Dim, Dim]

    @property
    def outer(self) -> str:
        return self.dims[0].name

    @property
    def inner(self) -> str:
        return self.dims[1].name

    @property
    def point(self) -> dict[str, Expr | int]:
        """The dim in terms of tile and point."""
        return {self.dim: lin([(Sym(self.outer), self.size), (Sym(self.inner), 1)])}

    @property
    def one(self) -> Slice:
        """All points of a tile."""
        first: Expr | int = Sym(self.outer) * self.size
        return Slice(first, first + self.size)

    def split(self, extent: Range) -> tuple[Range, ...]:
        """Return the ranges in place of one: two for the dim, else one with its ends rewritten."""
        if extent.dim != self.dim:
            return (replace(extent, lo=self.at(extent.lo), hi=self.at(extent.hi)),)
        return Range(self.outer, div(extent.hi, self.size)), Range(self.inner, self.size)

    def at(self, expr: Any) -> Any:
        """Return an index in terms of tile and point."""
        if isinstance(expr, Slice):
            moves = self.dim in index_symbols(expr)
            return replace(expr, lo=self.at(expr.lo), hi=self.at(expr.hi)) if moves else expr
        return self._reduced(substitute(expr, self.point))

    def _reduced(self, expr: Expr | int) -> Expr | int:
        """An expression in which the point of a tile is known to be less than its size."""
        match expr:
            case FloorDiv(a=a, n=self.size) if a == Sym(self.inner):
                return 0
            case Modulo(a=a, n=self.size) if a == Sym(self.inner):
                return a
            case _:
                return rebuild(expr, self._reduced)

    def place(self, expr: Any) -> tuple[Index, Index]:
        """Return the tile of a point, and its place there."""
        return self._reduced(div(expr, self.size)), self._reduced(mod(expr, self.size))

    def part(self, slice_: Slice, inside: bool) -> tuple[Expr | int, Slice] | None:
        """Return the tile and the part of it that a range is, if it is all of one or in the first.

        The reader is `inside` of a tile, or not.
        """
        lo, hi = self.at(slice_.lo), self.at(slice_.hi)
        which = div(lo, self.size)
        if isinstance(lo, int) and isinstance(hi, int) and which == div(hi - 1, self.size) == 0:
            # mentions the dim, so that the reader stays in its loop
            return minimum(Sym(self.outer), 0) if inside else 0, slice_
        length = _minus_each(lin([(hi, 1), (lo, -1)]))
        parts = length.args if isinstance(length, Ext) else (length,)
        if slice_.step != 1 or mod(lo, self.size) != 0 or self.size not in parts:
            return None
        return which, replace(slice_, lo=0, hi=length)

    def __str__(self) -> str:
        return f"{self.dim}: tiles of {self.size} for {len(self.members)} equations"


def _minus_each(expr: Expr | int) -> Expr | int:
    """Move a difference into a minimum: min(8*j+8,t+1)-8*j → min(8,t-8*j+1)."""
    for x, k in expr.terms if isinstance(expr, Lin) else ():
        if isinstance(x, Ext) and x.op == "min" and k == 1:
            return minimum(*(lin([(expr, 1), (x, -1), (a, 1)]) for a in x.args))
    return expr


def split_dim(
    graph: Graph, dim: str, size: int, sizes: Mapping[str, int], role: Role = Role.TILES
) -> tuple[Dim, Dim]:
    """Return new dims of the tiles (chunks, groups) of a dim, and of the points of one."""
    outer = graph.fresh_dim(role, dim, div(graph.declared[dim].hi, size), taken=sizes)
    inner = graph.fresh_dim(Role.POINTS, outer.name, size, stem=dim, taken=sizes)
    return outer, inner


def reads_own_or_reduces(
    graph: Graph,
    node: Node,
    dim: str,
    members: Collection[str],
    sizes: Mapping[str, int],
    but: Collection[str] = (),
) -> bool:
    """Tell whether members read their own point of a dim, and other readers reduce all points.

    Readers in `but` may do anything.
    """
    at = node.domain.dims.index(dim)
    return all(
        reader.args[k].index[at] == Sym(dim)
        if reader.name in members
        else reader.name in but or joins(graph, reader, k, dim, sizes)
        for reader, k in graph.readers[node.name]
    )


def joins(graph: Graph, reader: Node, index: int, dim: str, sizes: Mapping[str, int]) -> bool:
    """Tell whether a reader reduces all points of a dim, in any order."""
    a, op = reader.args[index], reader.op
    source = graph[a.name].domain
    at = source.dims.index(dim)
    e, axis = a.index[at], sum(isinstance(x, Slice) for x in a.index[:at])
    every = isinstance(e, Slice) and full_length(e, source[dim], sizes)
    return every and isinstance(op, Reduction) and axis in op.axes and op.monoid is not None


def tile_dim(graph: Graph, t: Tile) -> Graph:
    """Return the graph with the dim split."""
    dims = chain(*((d, *t.dims) if d.name == t.dim else (d,) for d in graph.dims))
    nodes = {k: _node(graph, t, n) for k, n in graph.nodes.items()}
    return Graph(nodes, graph.outputs, tuple(dims))


def _node(graph: Graph, tile: Tile, node: Node) -> Node:
    inside = node.name in tile.members
    reads = [_read(graph, tile, inside, a) for a in node.args]
    op, split = node.op, [axis for _, axis in reads if axis is not None]
    if split:
        assert isinstance(op, Reduction)
        (s,) = split
        axes = (k + (k > s) for k in op.axes)
        op = replace(op, axes=tuple(sorted({*axes, s + 1})))
    node = replace(node, op=op, args=tuple(a for a, _ in reads))
    if not inside:
        return node
    type_ = node.type
    if isinstance(type_, Type):
        type_ = replace(type_, shape=tuple(_minus_each(tile.at(x)) for x in type_.shape))
    domain = Domain(tuple(chain(*map(tile.split, node.domain))))
    return replace(node, op=op.at(tile.point), domain=domain, type=type_)


def _read(graph: Graph, tile: Tile, inside: bool, ref: Ref) -> tuple[Ref, int | None]:
    """The new form of a read, and the axis that it has as two now, if it has one."""
    index: list[Index] = []
    split: int | None = None
    for e, r in zip(ref.index, graph[ref.name].domain, strict=True):
        at = tile.at(e) if inside else e
        if r.dim != tile.dim or ref.name not in tile.members:
            index.append(at)
        elif not isinstance(e, Slice):
            index += tile.place(at)
        elif (part := tile.part(e, inside)) is not None:
            index += part
        else:
            split = sum(isinstance(x, Slice) for x in index)
            index += [Slice(0, div(r.hi, tile.size)), Slice(0, tile.size)]
    return Ref(ref.name, tuple(index)), split
