"""Short windows that move along a dim, once that is an axis: their elements, taken by numbers.

   y[t<T]: f32[] = sum(x[max(t-4,0):t+1:pad(5)], axes=(0,))
→  x_windows: f32[T,5] = take(x[0:T], at)          at[t,k] = min(max(t-4,0) + k, T-1)
   x_inside: f32[T,5] = where(there, x_windows, 0)   there[t,k] = k < t+1 - max(t-4,0)
   y: f32[T] = sum(x_inside, axes=(1,))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recurra.cost.thresholds import MAX_WINDOW_ELEMENTS
from recurra.ir.expr import Expr, Sym, compare, lin, maximum, minimum, substitute
from recurra.ir.graph import Node, Ref, Slice, index_symbols
from recurra.ir.op import LETTERS, Op
from recurra.ir.types import Range, Type
from recurra.ops import elementwise as el
from recurra.ops.indexing import Take
from recurra.ops.source import Const, Value

Emit = Callable[[Op, tuple[Ref, ...], str], Ref]


def is_window(slice_: Slice) -> bool:
    """Tell whether a range has as many elements everywhere, and few."""
    size = slice_.size
    return slice_.step == 1 and isinstance(size, int) and 0 < size <= MAX_WINDOW_ELEMENTS


def reads_window(ref: Ref, source: Node, dim: str) -> bool:
    """Tell whether a window is read that moves along the dim of its source."""
    e = ref.index[source.domain.dims.index(dim)]
    return isinstance(e, Slice) and dim in index_symbols(e) and is_window(e)


@dataclass(frozen=True)
class WindowRead:
    """A window of the points `every`, read at all points of a dim, `extent`.

    Those points are the axis `axis` of what is read; the elements of the window become the axis
    `place` of the result, whose last or first is the dim.
    """

    window: Slice
    every: Range
    extent: Range
    axis: int
    place: int
    last: bool

    def elements(self, ref: Ref, type_: Type, number: str, emit: Emit) -> Ref:
        """What is read, with zeros past the end of the range; `number` is that of an element."""
        names = LETTERS[: type_.rank]
        own = LETTERS[type_.rank]
        rest = names[: self.axis] + names[self.axis + 1 :]
        out = rest[: self.place] + own + rest[self.place :]
        out, places = (f"{out}Z", f"{own}Z") if self.last else (f"Z{out}", f"Z{own}")
        take = Take(labels=f"{names},{places}->{out}", axis=names[self.axis])
        taken = emit(
            take, (ref, emit(self.numbers(self.at(number), "i32", number), (), "at")), "windows"
        )
        if self.window.pad is None or self.window.loose:
            return taken
        inside = self.numbers(compare("<", Sym(number), self.window.count), "bool", number)
        zero = emit(Const(value=0, dtype=type_.dtype), (), "zero")
        where = el.Where(labels=f"{places},{out},->{out}")
        return emit(where, (emit(inside, (), "inside"), taken, zero), "windows")

    def at(self, number: str) -> Expr | int:
        """Which point an element is; one past the end of the range is any that there is."""
        at = lin([(self.window.lo, 1), (self.every.lo, -1), (Sym(number), 1)])
        if self.window.pad is None:
            return at
        last = lin([(self.every.hi, 1), (self.every.lo, -1), (1, -1)])
        return maximum(minimum(at, last), 0)

    def numbers(self, expr: Any, dtype: str, number: str) -> Value:
        """An expression of the dim and of an element's number, at all of them."""
        r = self.extent
        by = {r.dim: r.sym + r.lo} if r.lo != 0 else {}
        op = Value(expr=substitute(expr, by), dtype=dtype, bind=((number, self.window.size, 0),))
        return op.batch_symbol(r.dim, lin([(r.hi, 1), (r.lo, -1)]), self.last)
