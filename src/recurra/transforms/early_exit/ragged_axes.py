"""Axes that rows fill to different lengths: what they run along, and which ops would mix them up.

x[0:B,i,0:T] is f32[B,T]: its first axis runs along the rows b, its second along t, and row b
of it ends at T[b,i]. log(x) has the same axes; sum(x, axes=(1,)) must leave out what is past
the end, and keeps the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from recurra.ir.expr import Expr
from recurra.ir.graph import Index, Slice, index_at, index_symbols
from recurra.ir.op import Elementwise, Op, Reduction
from recurra.ir.types import is_float
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.elementwise import Mod
from recurra.ops.indexing import ArgSort, ByLabel, OneHot, Pick, Place, SearchSorted, Take
from recurra.ops.movement import Concat, Cut, Expand, Flip, Pad, Reshape, Transpose
from recurra.ops.ordering import CumMax, Scatter, Sort, TopK
from recurra.ops.reduction import ArgMax, Fold, highest, identity, lowest
from recurra.ops.scan import CumProd, CumSum, DiscountedSum, Discounts
from recurra.ops.softmax import LogSoftmax, Softmax

COUNTED = ""  # in place of a dim: data counted the elements, and `part` says how many there are


@dataclass(frozen=True)
class Along:
    """The run of an axis: it has the length of the slice `part` of `dim`.

    If rows end along `dim`, it is as long as that slice in the row at `rows`: the axis of
    x[b,0:T] has dim t, part 0:T, rows (b,). The index of a row whose own axis has been reduced is
    listed in `longest`: of x[0:B,0:T].max(0) the longest row counts.
    """

    dim: str
    part: Slice
    rows: tuple[Index, ...] = ()
    longest: tuple[int, ...] = ()

    def at(self, by: Mapping[str, Expr | int], cut: set[str]) -> Along | None:
        """The same run in a read of the value at `by`; None if it varies with a dim in `cut`."""
        named = index_symbols(self.part).union(*map(index_symbols, self.rows))
        if named & cut:
            return None
        rows = tuple(index_at(e, by) for e in self.rows)
        return replace(self, part=self.part.at(by), rows=rows)

    def shifted(self, start: Expr | int, size: Expr | int) -> Along:
        """Elements start .. start + size - 1 of the axis."""
        lo: Expr | int = self.part.lo + start
        return replace(self, part=Slice(lo, lo + size)) if self.part.step == 1 else self


Axes = tuple[Along | None, ...]
Shapes = Sequence[Sequence[Expr | int]]


class RowsDiffer(Exception):
    """One axis that would run along several rows, each of which ends at a point of its own."""


def joined(candidates: Iterable[Along | None]) -> Along | None:
    """The run of an axis that several operands share: they all have its length.

    Raises RowsDiffer.
    """
    known = sorted((a for a in candidates if a is not None), key=lambda a: len(a.longest))
    for a in known:
        if a.rows and known[0].rows and a.rows != known[0].rows:
            raise RowsDiffer
    return known[0] if known else None


def remaining(axes: Axes, shape: Sequence[Expr | int], dropped: Collection[int]) -> Axes:
    """The axes that remain when some are reduced; rows along those count by the longest."""

    def is_along(axis: int, part: Index) -> bool:
        a = axes[axis]
        if not isinstance(part, Slice) or (a is not None and a.rows):
            return False
        return shape[axis] == part.count if a is None else a.part == part

    def left(along: Along) -> Along:
        gone = {k for k, e in enumerate(along.rows) if any(is_along(j, e) for j in dropped)}
        return replace(along, longest=tuple(sorted({*along.longest, *gone})))

    return tuple(a and left(a) for a in axes)


def _by_label(ins: Sequence[str], out: str, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    found: dict[str, list[Along | None]] = {c: [] for c in "".join(ins) + out}
    for labels, shape, axes in zip(ins, shapes, xs, strict=True):
        dropped = [k for k, c in enumerate(labels) if c not in out]
        for c, a in zip(labels, remaining(axes, shape, dropped), strict=True):
            found[c].append(a)
    along = {c: joined(axes) for c, axes in found.items()}
    return tuple(along[c] for c in out)


def _pointwise(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    ins, out = op.parts(tuple(map(len, shapes)))
    return _by_label(ins, out, shapes, xs)


def _einsum(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    ins, out = op.parts()
    return _by_label(ins, out, shapes, xs)


def _by_labels(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    x, i, out = op.parts()
    return _by_label((x, i), out, shapes, xs)


def _expand(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    src, out = op.labels.split("->")
    return _by_label((src,), out, shapes, xs)


def _folded(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    dropped = op.axes if isinstance(op, Reduction) else (op.axis,)
    axes = remaining(xs[0], shapes[0], dropped)
    return tuple(a for k, a in enumerate(axes) if k not in dropped)


def _same(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    return xs[0]


def _cut(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    (x,) = xs
    return tuple(
        a.shifted(op.start, op.size) if a is not None and k == op.axis else a
        for k, a in enumerate(x)
    )


def _whole(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    return tuple(None if k == op.axis else a for k, a in enumerate(xs[0]))


def _branches(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    return xs[0] if len(set(xs)) == 1 else (None,) * len(shapes[0])


def _inserted(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    return (*xs[0][: op.axis], None, *xs[0][op.axis :])


def _concat(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    columns = zip(*xs, strict=True)
    return tuple(None if k == op.axis else joined(c) for k, c in enumerate(columns))


def _scatter(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    columns = enumerate(zip(*xs, strict=True))
    return tuple(c[0] if k == op.axis else joined(c) for k, c in columns)


def _reshape(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    """Axes of size one come and go; the others stay, or none is known."""
    sizes = [(n, a) for n, a in zip(shapes[0], xs[0], strict=True) if n != 1]
    kept = iter(sizes if [n for n, _ in sizes] == [n for n in op.shape if n != 1] else ())
    return tuple(None if n == 1 else next(kept, (n, None))[1] for n in op.shape)


_AXES: dict[type[Op], Callable[[Any, Shapes, Sequence[Axes]], Axes]] = {
    Elementwise: _pointwise,
    Einsum: _einsum,
    ByLabel: _by_labels,
    Expand: _expand,
    Transpose: lambda op, _, xs: tuple(xs[0][k] for k in op.order),
    Reduction: _folded,
    DiscountedSum: _folded,
    Pick: _folded,
    Discounts: _inserted,
    Place: _inserted,
    OneHot: _inserted,
    CumSum: _same,
    CumProd: _same,
    CumMax: _same,
    Sort: _same,
    ArgSort: _same,
    TopK: _whole,
    Scatter: _scatter,
    Flip: _same,
    Softmax: _same,
    LogSoftmax: _same,
    Cut: _cut,
    Pad: _whole,
    Concat: _concat,
    Reshape: _reshape,
    Merge: _branches,
}


def result_axes(op: Op, shapes: Shapes, xs: Sequence[Axes]) -> Axes | None:
    """Find what the axes of the result run along; None: the op cannot say.

    Raises RowsDiffer.
    """
    rule = next((_AXES[c] for c in type(op).__mro__ if c in _AXES), None)
    return None if rule is None else rule(op, shapes, xs)


def folded(op: Any, dtype: str) -> list[tuple[int, int, float]]:
    """(operand, axis, what leaves the result alone) for every axis whose elements the op mixes."""
    match op:
        case ArgMax():
            return [(0, a, lowest(dtype)) for a in op.axes]
        case Reduction():
            return [(0, a, identity(op.monoid or "add", dtype)) for a in op.axes]
        case Fold():
            return [(0, a, identity(op.monoid_of, dtype)) for a in range(op.rank)]
        case DiscountedSum() | CumSum() | CumProd():
            return [(0, op.axis, 1.0 if isinstance(op, CumProd) else 0.0)]
        case Sort() | ArgSort():
            return [(0, op.axis, nan if is_float(dtype) else highest(dtype))]  # NaN comes last
        case SearchSorted():
            return [(0, op.parts()[0].index(op.axis), nan if is_float(dtype) else highest(dtype))]
        case Softmax() | LogSoftmax() | TopK() | CumMax():
            return [(0, op.axis, lowest(dtype))]
        case Scatter():
            return [(1, op.axis, -1)]  # a place that is left out
        case Einsum():
            ins, out = op.parts()
            return [
                (k, s.index(c), identity("add", dtype))
                for k, s in enumerate(ins)
                for c in s
                if c not in out
            ]
        case _:
            return []


def ends_last(op: Op) -> bool:
    """Tell whether an element of the result is made of none behind it along the op's axis."""
    return isinstance(op, (CumProd, CumMax)) or (isinstance(op, CumSum) and not op.reverse)


def moved_axes(op: Op, operands: int) -> list[tuple[int, int]]:
    """(operand, axis) for every axis along which the op puts elements at other places."""
    match op:
        case Flip() | Sort() | ArgSort() | TopK() | Cut() | Pad() | Concat() | Scatter():
            return [(k, op.axis) for k in range(operands)]
        case Take() | SearchSorted():
            return [(0, op.parts()[0].index(op.axis))]
        case _:
            return []


def partial(op: Op, dtypes: Sequence[str]) -> list[tuple[int, float]]:
    """(operand, a value that will do) for operands of which the op does not take every number."""
    match op:
        case Take():
            return [(1, 0)]
        case Mod() if not is_float(dtypes[1]):
            return [(1, 1)]
        case _:
            return []
