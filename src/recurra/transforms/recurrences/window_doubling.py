"""Reduce windows of a fixed length by blocks of 1, 2, 4, .. points, each made of two halves.

   y[t<T] = sum(x[max(t-4,0):t+1])
→  y = x[t] + x4[t-1];  x4 = x2[t] + x2[t-2];  x2 = x[t] + x[t-1]      what is before 0 is 0

A window of L points takes some log L sums of whole arrays along t, in place of a loop over t, and
no subtraction, so nothing cancels. If t is the dim of a loop, for another recurrence, the window
stays: a step of that loop reads it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

from recurra.ir.expr import Expr, Ext, compare
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Op
from recurra.ir.types import is_shift
from recurra.ops.control import Merge
from recurra.ops.reduction import Reduction
from recurra.ops.scan import DiscountedSum
from recurra.transforms.recurrences.scans import RangeFold, as_range_fold, discounted
from recurra.transforms.rewriter.pattern_rewriter import apply, rule
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.vectorize.plan import ordered_dims


@dataclass(frozen=True)
class MovingWindow:
    """The points t+begin .. t+end-1 that lie in a dim's range."""

    begin: int
    end: int


def split_windows(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph whose windows along unordered dims are sums of shifted arrays."""
    before = Rewriting.of(graph, sizes)
    folds = [fold for n in graph.nodes.values() if (fold := as_range_fold(n, before)) is not None]
    if not any(map(_window, folds)):
        return graph
    ordered = ordered_dims(graph)

    @rule(Reduction, DiscountedSum)
    def split_window(node: Node, graph: Rewriting) -> Node | None:
        """x[t] ∘ .. ∘ x[t+3] → y[t] ∘ y[t+2], y[t] = x[t] ∘ x[t+1]"""
        fold = as_range_fold(node, graph)
        window = fold and _window(fold)
        if fold is None or window is None or ordered[fold.range.dim]:
            return None
        return _Blocks(graph, fold).joined(window)

    return apply(graph, (split_window,), sizes)


def _window(fold: RangeFold) -> MovingWindow | None:
    """The window that is reduced, if it moves with a dim by one point per step."""
    r, s = fold.range, fold.slice
    if r.dim not in fold.node.domain or fold.node.domain[r.dim] != r:
        return None
    begin, end = _shift(s.lo, r.dim, "max", r.lo), _shift(s.hi, r.dim, "min", r.hi)
    if begin is None or end is None or end - begin < 2:
        return None
    if fold.gamma != 1 and begin < 0:
        return None  # the first point that there is counts whole, and that is not always the same
    return MovingWindow(begin, end)


def _shift(end: Expr | int, dim: str, op: str, edge: Expr | int) -> int | None:
    """c if an end of a range is dim + c, or the edge of the dim if that is nearer."""
    match end:
        case Ext(op=name, args=(moving, last)) if name == op and last == edge:
            return is_shift(moving, dim)
        case Ext(op=name, args=(last, moving)) if name == op and last == edge:
            return is_shift(moving, dim)
        case _:
            return is_shift(end, dim)


@dataclass(frozen=True)
class _Blocks:
    """Reductions of 1, 2, 4, .. points from each point of a range on."""

    graph: Rewriting
    fold: RangeFold

    def joined(self, window: MovingWindow) -> Node:
        """The equation as a combination of blocks."""
        if window.begin >= 0:
            parts = self.parts(window.begin, window.end - window.begin, 1)
        elif window.end <= 1:
            parts = self.parts(window.end - 1, window.end - window.begin, -1)
        else:
            parts = [*self.parts(0, 1 - window.begin, -1), *self.parts(1, window.end - 1, 1)]
        first, *others = [*parts, self.unit, self.unit][: max(len(parts), 2)]
        return replace(self.fold.node, op=self.op, args=(first, reduce(self.both, others)))

    @property
    def op(self) -> Op:
        return Op.registry[self.fold.monoid.op]()

    @property
    def unit(self) -> Ref:
        return self.graph.constant(self.fold.node, self.fold.monoid.unit, "unit")

    def parts(self, first: int, length: int, step: int) -> list[Ref]:
        """Reads of blocks that make up `length` points from t + `first` on, or back."""
        out: list[Ref] = []
        block, size, at = self.fold.point(self.graph), 1, first
        while True:
            left = length - abs(at - first)
            largest = 2 * size >= length
            for _ in range(left // size if largest else left // size % 2):
                out += self.shifted(block, at, self.fold.gamma ** abs(at - first))
                at += step * size
            if largest:
                return out
            later = self.shifted(block, step * size, self.fold.gamma**size)
            block, size = reduce(self.both, later, block), 2 * size

    def both(self, one: Ref, other: Ref) -> Ref:
        """Emit the combination of two blocks."""
        return self.graph.emit(self.op, (one, other), self.fold.node.domain, "block", whole=True)

    def shifted(self, block: Ref, steps: int, weight: float) -> list[Ref]:
        """Emit a weighted block so many steps on, the unit where there is none; [] if nowhere."""
        r, node, graph = self.fold.range, self.fold.node, self.graph
        if abs(steps) >= r.size(graph.sizes):
            return []
        if steps:
            edge = r.hi - steps if steps > 0 else r.lo - steps
            inside, outside = ("<", ">=") if steps > 0 else (">=", "<")
            merge = Merge(when=(compare(inside, r.sym, edge), compare(outside, r.sym, edge)))
            at = Ref(block.name, node.domain.point(r.dim, r.sym + steps))
            block = graph.emit(merge, (at, self.unit), node.domain, "shifted", whole=True)
        return [block if weight == 1 else discounted(node, graph, weight, block)]
