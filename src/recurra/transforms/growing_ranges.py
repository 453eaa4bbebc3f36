"""Ranges that grow with the steps of a loop, the axes along them, and the equations that have them.

s[t<T]: f32[t+1] = mul(q, x[0:t+1], labels=',a->a')    its axis runs along 0:t+1
y[t<T]: f32[] = sum(s, axes=(0,))                      reduces such an axis

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
from recurra.transforms.vectorize.plan import ordered_dims


@dataclass(frozen=True)
class Growing:
    """A range lo:hi:step of the points along `dim`, to be split into tiles of `size`."""

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
        """The largest length of a range of first points, such as 0:min(t,4); else None."""
        e = self.hi
        counts = e.args if isinstance(e, Ext) and e.op == "min" and self.lo == 0 else ()
        return next((x for x in counts if isinstance(x, int)), None)

    @property
    def length(self) -> Expr | int:
        """The length hi - lo; t+1 - max(t-7,0) of a window is min(8,t+1)."""
        if isinstance(self.lo, Ext) and self.lo.op == "max":
            return minimum(*(lin([(self.hi, 1), (x, -1)]) for x in self.lo.args))
        return lin([(self.hi, 1), (self.lo, -1)])


Axes = tuple[Growing | None, ...]


def grows(
    slice_: Slice, extent: Range, dims: Collection[str], free: frozenset[str] = frozenset()
) -> bool:
    """Tell whether the ends of a range move with `dims`; if some are `free`, with these alone."""
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
    """The axes that run along growing ranges; `size` is that of tiles, or None for the best one.

    `free` are unordered dims that are to be loops. If there are any, only their ranges count, also
    those of every n-th point, and those of first points that may be empty, which are then widened.
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
        self.ordered = ordered_dims(self.graph) if asked else {}
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
        """Tell whether a range grows in a loop that orders the equation, and is never empty."""
        moving = (symbols(lo) | symbols(hi)) & self.dims
        if not all(d in self.free or node.name in self.ordered[d] for d in moving):
            return False
        most = Growing(lo, hi, "", 0).most if self.free and isinstance(hi, Expr) else None
        if most is not None and self.size is not None and most <= self.size:
            return True  # it will be widened
        return isl.always(compare("<", lo, hi), node.domain)

    def tile(self, node: Node, ref: Ref, growing: Growing) -> int:
        """The points of a tile; 0 if tiles would not pay."""
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
        """The growing range along which each axis of an equation runs; None for other axes."""
        if name not in self.known:
            n = self.graph[name]
            shape = shape_of(n.type)
            self.known[name] = (None,) * len(shape)
            if any(symbols(x) & self.dims for x in shape):
                self.known[name] = self.result(n)
        return self.known[name]

    def operand(self, ref: Ref) -> Axes:
        """The growing range along which each axis of a read runs."""
        return (*(None if s.pad else self.at(s) for s in ref.slices), *self.of(ref.name))

    def at(self, slice_: Slice) -> Growing | None:
        """The growing range that a slice is."""
        return self.ranges.get(Slice(slice_.lo, slice_.hi, slice_.step))

    def result(self, node: Node) -> Axes:
        """The growing range along which each axis of a result runs, from those of its operands."""
        shapes = [shape_of(self.graph.read_type(a)) for a in node.args]
        runs = [tuple(x and Along(x.dim, x.part) for x in self.operand(a)) for a in node.args]
        found = result_axes(node.op, shapes, runs) or (None,) * len(shape_of(node.type))
        return tuple(x and self.at(x.part) for x in found)

    # ---- members

    def members(self, growing: Growing) -> frozenset[str] | None:
        """The equations that have or reduce an axis along a range; None if it cannot be tiled."""
        out: set[str] = set()
        for n in self.graph.nodes.values():
            axes = [self.operand(a) for a in n.args]
            mine = self.of(n.name)
            if growing in mine or any(growing in x for x in axes):
                if not self.can_tile(n, growing, axes, mine):
                    return None
                out.add(n.name)
            elif growing.part.count in shape_of(n.type):
                return None  # an axis of that length, which does not come from the range
        return frozenset(out)

    def can_tile(self, node: Node, growing: Growing, axes: Sequence[Axes], mine: Axes) -> bool:
        """Tell whether an equation can run tile by tile."""
        if node.name in self.graph.outputs and growing in mine:
            return False
        if not self.in_order(node, growing.lo, growing.hi):
            return False
        if any(set(y) - {None, growing} or y.count(growing) > 1 for y in (*axes, mine)):
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
        """Tell whether the range is one label of a contraction."""
        ins, out = op.parts()
        pairs = list(zip(ins, axes, strict=True))
        labels = {x[k.index(growing)] for x, k in pairs if growing in k}
        everywhere = all(growing in k for x, k in pairs if labels & set(x))
        return len(labels) == 1 and everywhere and (labels <= set(out)) == (growing in mine)


def longest_window(places: int) -> int:
    """Return the longest window that a circular store of so many places holds.

    A second place is needed for each of its points, or for a tile of them.
    """
    return max(
        min(places // 2, MIN_STRIPPED_POINTS - 1),
        places - STRIP_POINTS if places >= MIN_STRIPPED_POINTS + STRIP_POINTS else 0,
    )
