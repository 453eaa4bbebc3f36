"""Ranges that grow with the steps of a loop, the axes that run along them, and who has these.

s[t<T]: f32[t+1] = mul(q, x[0:t+1], labels=',a->a')    its axis runs along 0:t+1
y[t<T]: f32[] = sum(s, axes=(0,))                      folds one

Windows max(t-7,0):t+1 and chunks t//8*8:t+1 are such ranges: their ends are steps of the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from recurra.cost.thresholds import (
    MAX_STRIP_BYTES,
    MIN_STRIP_POINTS,
    MIN_STRIPPED_POINTS,
    STRIP_POINTS,
)
from recurra.ir.expr import Expr, Ext, compare, lin, minimum, substitute, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import Elementwise, Reduction
from recurra.ir.types import Range, Type, is_shift
from recurra.ops.contraction import Einsum
from recurra.ops.movement import Transpose
from recurra.polyhedral import isl
from recurra.polyhedral.extent import at_sizes
from recurra.transforms.early_exit.ragged_axes import Along, result_axes
from recurra.transforms.rewriter.rewriting import shape_of
from recurra.transforms.vectorize.plan import loops


@dataclass(frozen=True)
class Growing:
    """lo:hi:step of the points along `dim`, worth tiles of `size`."""

    lo: Expr | int
    hi: Expr
    dim: str
    size: int
    step: int = 1

    @property
    def part(self) -> Slice:
        return Slice(self.lo, self.hi, self.step)

    @property
    def most(self) -> int | None:
        """The most points of a range of first points, such as 0:min(t,4); else None."""
        e = self.hi
        counts = e.args if isinstance(e, Ext) and e.op == "min" and self.lo == 0 else ()
        return next((x for x in counts if isinstance(x, int)), None)

    @property
    def length(self) -> Expr | int:
        """hi - lo; of a window t+1 - max(t-7,0), min(8,t+1)"""
        if isinstance(self.lo, Ext) and self.lo.op == "max":
            return minimum(*(lin([(self.hi, 1), (x, -1)]) for x in self.lo.args))
        return lin([(self.hi, 1), (self.lo, -1)])


Axes = tuple[Growing | None, ...]


def grows(
    slice_: Slice, extent: Range, dims: Collection[str], free: frozenset[str] = frozenset()
) -> bool:
    """Tell whether the ends of a range move with `dims`: if some are `free`, with these alone."""
    moving = symbols(slice_.hi).intersection(dims)
    if slice_.pad is not None or (slice_.step != 1 and not free) or (free and not moving <= free):
        return False
    if slice_.lo == 0 == extent.lo:
        return bool(moving)
    return is_shift(slice_.hi, extent.dim) == 1 and not isinstance(
        lin([(slice_.hi, 1), (slice_.lo, -1)]), int
    )


def any_grows(graph: Graph) -> bool:
    """Tell whether a range is read that grows with a dim."""
    dims = set(graph.declared)
    return any(
        isinstance(e, Slice) and grows(e, r, dims)
        for n in graph.nodes.values()
        for a in n.args
        for e, r in zip(a.index, graph[a.name].domain, strict=True)
    )


@dataclass
class GrowingAxes:
    """The axes that run along growing ranges; `size` as in `strip`.

    `free`: dims that order nothing and are to be loops; if there are any, only their ranges count,
    also those of every n-th point, and of first points that may be none: they are to be widened.
    """

    graph: Graph
    sizes: Mapping[str, int]
    size: int | None
    free: frozenset[str] = frozenset()
    ranges: dict[Slice, Growing] = field(default_factory=dict[Slice, Growing])
    known: dict[str, Axes] = field(default_factory=dict[str, Axes])

    def __post_init__(self) -> None:
        self.dims = set(self.graph.declared)
        asked = [
            (n, a, e, r)
            for n in self.graph.nodes.values()
            for a in n.args
            for e, r in zip(a.index, self.graph[a.name].domain, strict=True)
            if isinstance(e, Slice) and grows(e, r, self.dims, self.free)
        ]
        self.ordered = loops(self.graph) if asked else {}
        for n, a, e, r in asked:
            if not isinstance(e.hi, Expr) or not self.in_order(n, e.lo, e.hi):
                continue
            g = Growing(e.lo, e.hi, r.dim, 0, e.step)
            size = self.tile(n, a, g)
            if size:
                old = self.ranges.get(g.part)
                least = min(size, old.size) if old else size
                self.ranges[g.part] = replace(g, size=least)

    def in_order(self, node: Node, lo: Expr | int, hi: Expr | int) -> bool:
        """Does the range grow in a loop that orders the equation, and is never empty?"""
        moving = (symbols(lo) | symbols(hi)) & self.dims
        if not all(d in self.free or node.name in self.ordered[d] for d in moving):
            return False
        most = Growing(lo, hi, "", 0).most if self.free and isinstance(hi, Expr) else None
        if most is not None and self.size is not None and most <= self.size:
            return True  # it is widened
        return isl.always(compare("<", lo, hi), node.domain)

    def tile(self, node: Node, ref: Ref, growing: Growing) -> int:
        """Points of a tile; 0 where tiles would not pay."""
        most = isl.largest(
            substitute(growing.length, self.sizes), at_sizes(node.domain, self.sizes)
        )
        source = self.graph[ref.name]
        if not isinstance(most, int) or not isinstance(source.type, Type):
            return 0
        if self.size is not None:
            return self.size
        if most < MIN_STRIPPED_POINTS or source.type.mentions() & self.dims:
            return 0
        free = [r for r in at_sizes(source.domain, self.sizes) if r.dim not in symbols(growing.hi)]
        row = source.type.nbytes(self.sizes) * prod(r.size({}) for r in free if not r.mentions())
        size = STRIP_POINTS
        while size > MIN_STRIP_POINTS and size * row > MAX_STRIP_BYTES:
            size //= 2
        return size

    # ---- axes

    def of(self, name: str) -> Axes:
        """The range that each axis of an equation runs along; None for axes of fixed size."""
        if name not in self.known:
            n = self.graph[name]
            shape = shape_of(n.type)
            self.known[name] = (None,) * len(shape)
            if any(symbols(x) & self.dims for x in shape):
                self.known[name] = self.result(n)
        return self.known[name]

    def operand(self, ref: Ref) -> Axes:
        """The same of what is read."""
        return (*(None if s.pad else self.at(s) for s in ref.slices), *self.of(ref.name))

    def at(self, slice_: Slice) -> Growing | None:
        return self.ranges.get(Slice(slice_.lo, slice_.hi, slice_.step))

    def result(self, node: Node) -> Axes:
        shapes = [shape_of(self.graph.read_type(a)) for a in node.args]
        given = [tuple(x and Along(x.dim, x.part) for x in self.operand(a)) for a in node.args]
        found = result_axes(node.op, shapes, given) or (None,) * len(shape_of(node.type))
        return tuple(x and self.at(x.part) for x in found)

    # ---- who has them

    def members(self, growing: Growing) -> frozenset[str] | None:
        """The equations that have an axis along a range, or fold one; None: it cannot be tiled."""
        out: set[str] = set()
        for n in self.graph.nodes.values():
            axes = [self.operand(a) for a in n.args]
            mine = self.of(n.name)
            if growing in mine or any(growing in x for x in axes):
                if not self.in_tiles(n, growing, axes, mine):
                    return None
                out.add(n.name)
            elif growing.part.count in shape_of(n.type):
                # of that length, but not made of such a range
                return None
        return frozenset(out)

    def in_tiles(self, node: Node, growing: Growing, axes: Sequence[Axes], mine: Axes) -> bool:
        """Can an equation be said tile by tile?"""
        if (node.name in self.graph.outputs and growing in mine) or not self.in_order(
            node, growing.lo, growing.hi
        ):
            return False
        if any(x not in (None, growing) for y in (*axes, mine) for x in y):
            return False
        if max(y.count(growing) for y in (*axes, mine)) > 1:
            return False
        if any(growing in self.of(a.name) and not self.graph.is_identity(a) for a in node.args):
            return False
        match node.op:
            case Elementwise() | Transpose():
                return growing in mine
            case Einsum():
                return self.one_label(node.op, growing, axes, mine)
            case Reduction(axes=gone):
                return growing in mine or (node.op.monoid is not None and len(gone) == 1)
            case _:
                return False

    def one_label(self, op: Einsum, growing: Growing, axes: Sequence[Axes], mine: Axes) -> bool:
        """Is the range one label of a contraction?"""
        ins, out = op.parts()
        named = list(zip(ins, axes, strict=True))
        labels = {x[k.index(growing)] for x, k in named if growing in k}
        everywhere = all(growing in k for x, k in named if labels & set(x))
        return len(labels) == 1 and everywhere and (labels <= set(out)) == (growing in mine)


def longest_window(places: int) -> int:
    """The longest window that so many places hold: of one, all or a tile has a second place."""
    return max(
        min(places // 2, MIN_STRIPPED_POINTS - 1),
        places - STRIP_POINTS if places >= MIN_STRIPPED_POINTS + STRIP_POINTS else 0,
    )
