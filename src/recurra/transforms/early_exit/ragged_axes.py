"""Ragged axes: the runs of an op's result, from those of its operands, and the ops that mix them.

x[0:B,i,0:T] is f32[B,T]: its first axis runs along the rows b, its second along t, and row b of it
ends at T[b,i]. log(x) has the same axes; sum(x, axes=(1,)) keeps the first, and must not count
elements past the end.
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

COUNTED = ""  # in place of a dim: the number of elements, in `part`, depends on data


@dataclass(frozen=True)
class Along:
    """The run of an axis: it has the length of the slice `part` of `dim`.

    If rows end along `dim`, the slice is of the row at `rows`: the axis of x[b,0:T] has dim t, part
    0:T, rows (b,). `longest` lists the positions of rows whose own axis has been reduced, so that
    the longest of them counts, as in x[0:B,0:T].max(0).
    """

    dim: str
    part: Slice
    rows: tuple[Index, ...] = ()
    longest: tuple[int, ...] = ()

    def at(self, by: Mapping[str, Expr | int], sliced: set[str]) -> Along | None:
        """The run in a read of the value at `by`; None if it varies with a dim in `sliced`."""
        if index_symbols(self.part).union(*map(index_symbols, self.rows)) & sliced:
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


def shared_run(candidates: Iterable[Along | None]) -> Along | None:
    """Return the run of an axis that several operands have, all with its length.

    Raises RowsDiffer.
    """
    known = sorted((a for a in candidates if a is not None), key=lambda a: len(a.longest))
    for a in known:
        if a.rows and known[0].rows and a.rows != known[0].rows:
            raise RowsDiffer
    return known[0] if known else None


def remaining(axes: Axes, shape: Sequence[Expr | int], dropped: Collection[int]) -> Axes:
    """Return the axes after some are reduced; of rows along those, the longest counts."""

    def is_along(axis: int, part: Index) -> bool:
        a = axes[axis]
        if not isinstance(part, Slice) or (a is not None and a.rows):
            return False
        return shape[axis] == part.count if a is None else a.part == part

    def reduced(along: Along) -> Along:
        gone = {k for k, e in enumerate(along.rows) if any(is_along(j, e) for j in dropped)}
        return replace(along, longest=tuple(sorted({*along.longest, *gone})))

    return tuple(a and reduced(a) for a in axes)


def _by_label(ins: Sequence[str], out: str, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    found: dict[str, list[Along | None]] = {c: [] for c in "".join(ins) + out}
    for labels, shape, axes in zip(ins, shapes, xs, strict=True):
        dropped = [k for k, c in enumerate(labels) if c not in out]
        for c, a in zip(labels, remaining(axes, shape, dropped), strict=True):
            found[c].append(a)
    runs = {c: shared_run(axes) for c, axes in found.items()}  # also of labels that are summed
    return tuple(runs[c] for c in out)


def _pointwise(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    ins, out = op.parts(tuple(map(len, shapes)))
    return _by_label(ins, out, shapes, xs)


def _by_parts(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    ins, out = op.parts()
    return _by_label(ins, out, shapes, xs)


def _by_two_labels(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    *ins, out = op.parts()
    return _by_label(ins, out, shapes, xs)


def _reduced(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    dropped = op.axes if isinstance(op, Reduction) else (op.axis,)
    axes = remaining(xs[0], shapes[0], dropped)
    return tuple(a for k, a in enumerate(axes) if k not in dropped)


def _cut(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    (x,) = xs
    return tuple(
        a.shifted(op.start, op.size) if a is not None and k == op.axis else a
        for k, a in enumerate(x)
    )


def _concat(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    columns = zip(*xs, strict=True)
    return tuple(None if k == op.axis else shared_run(c) for k, c in enumerate(columns))


def _scatter(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    columns = enumerate(zip(*xs, strict=True))
    return tuple(c[0] if k == op.axis else shared_run(c) for k, c in columns)


def _reshape(op: Any, shapes: Shapes, xs: Sequence[Axes]) -> Axes:
    """Keep the axes if only axes of size one are added or removed; else none is known."""
    sizes = [(n, a) for n, a in zip(shapes[0], xs[0], strict=True) if n != 1]
    kept = iter(sizes if [n for n, _ in sizes] == [n for n in op.shape if n != 1] else ())
    return tuple(None if n == 1 else next(kept, (n, None))[1] for n in op.shape)


Rule = Callable[[Any, Shapes, Sequence[Axes]], Axes]
_AXES: dict[type[Op], Rule] = {
    Elementwise: _pointwise,
    Einsum: _by_parts,
    ByLabel: _by_two_labels,
    Expand: lambda op, shapes, xs: _by_label(
        (op.labels.split("->")[0],), op.labels.split("->")[1], shapes, xs
    ),
    Transpose: lambda op, _, xs: tuple(xs[0][k] for k in op.order),
    **dict.fromkeys((Reduction, DiscountedSum, Pick), _reduced),
    **dict.fromkeys(
        (Discounts, Place, OneHot), lambda op, _, xs: (*xs[0][: op.axis], None, *xs[0][op.axis :])
    ),
    **dict.fromkeys(
        (CumSum, CumProd, CumMax, Sort, ArgSort, Flip, Softmax, LogSoftmax), lambda op, _, xs: xs[0]
    ),
    **dict.fromkeys(
        (TopK, Pad),
        lambda op, _, xs: tuple(None if k == op.axis else a for k, a in enumerate(xs[0])),
    ),
    Scatter: _scatter,
    Cut: _cut,
    Concat: _concat,
    Reshape: _reshape,
    Merge: lambda op, shapes, xs: xs[0] if len(set(xs)) == 1 else (None,) * len(shapes[0]),
}


def result_axes(op: Op, shapes: Shapes, xs: Sequence[Axes]) -> Axes | None:
    """Return the runs of the result's axes; None if the op has no rule.

    Raises RowsDiffer.
    """
    rule = next((_AXES[c] for c in type(op).__mro__ if c in _AXES), None)
    return None if rule is None else rule(op, shapes, xs)


def neutral_fills(op: Any, dtype: str) -> list[tuple[int, int, float]]:
    """Return (operand, axis, neutral value) for each axis whose elements the op combines."""
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


def reads_only_earlier(op: Op) -> bool:
    """Tell whether an element of the result depends on no element behind it along the axis."""
    return isinstance(op, (CumProd, CumMax)) or (isinstance(op, CumSum) and not op.reverse)


def moved_axes(op: Op, operands: int) -> list[tuple[int, int]]:
    """Return (operand, axis) for each axis along which the op moves elements."""
    match op:
        case Flip() | Sort() | ArgSort() | TopK() | Cut() | Pad() | Concat() | Scatter():
            return [(k, op.axis) for k in range(operands)]
        case Take() | SearchSorted():
            return [(0, op.parts()[0].index(op.axis))]
        case _:
            return []


def safe_fills(op: Op, dtypes: Sequence[str]) -> list[tuple[int, float]]:
    """Return (operand, valid value) for operands that the op does not define for all values."""
    match op:
        case Take():
            return [(1, 0)]
        case Mod() if not is_float(dtypes[1]):
            return [(1, 1)]
        case _:
            return []
