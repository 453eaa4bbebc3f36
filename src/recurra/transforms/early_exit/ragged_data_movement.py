"""Rows that the data end, joined, cut, padded and reshaped: elements are taken from their places.

concat(x[b,0:T], z)   →   take(concat(x[b,0:9], z), at),  at[k] = k < length ? k : k - length + 9
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recurra.ir.expr import Product, lin, substitute, walk
from recurra.ir.graph import Index, Node, Ref, Slice
from recurra.ir.op import LETTERS, Op, join_labels
from recurra.ops import elementwise as el
from recurra.ops.control import Call
from recurra.ops.indexing import Take
from recurra.ops.movement import Concat, Cut, Pad, Reshape
from recurra.ops.reduction import Sum
from recurra.ops.source import Const
from recurra.transforms.early_exit.masked_reads import MaskedOperand, Reads
from recurra.transforms.early_exit.ragged_axes import COUNTED, Along
from recurra.transforms.rewriter.rewriting import shape_of

Moved = tuple[Op, list[Ref]]


@dataclass
class RowMoves(Reads):
    """Operators that move elements of rows to places that only the data decide."""

    def moved(self, node: Node, xs: Sequence[MaskedOperand]) -> Moved | None:
        """Rewrite a move along axes that end; None: it moves nothing by data.

        Axes of its result that end, and nothing says where, are as long as their size says.
        """
        rule, size = _RULES.get(type(node.op)), shape_of(node.type)
        if rule is None or not self._is_by_data(node, xs):
            return None
        own = tuple(r.sym for r in self.rows)
        self._expect_own_rows(node, xs, own)
        self.axes[node.name] = tuple(
            Along(COUNTED, Slice(0, n), own) if self.ended(n) and not self._is_known(a) else a
            for n, a in zip(size, self.axes[node.name], strict=True)
        )
        return rule(self, node, node.op, xs)

    def _is_by_data(self, node: Node, xs: Sequence[MaskedOperand]) -> bool:
        """Does the length of an axis say where elements go?"""
        match node.op:
            case Concat(axis=axis):
                sizes = [x.shape[axis] for x in xs]
            case Cut(axis=axis, start=start, size=size):
                known = self._is_known(self.axes[node.name][axis])
                return self.ended(start) or (self.ended(size) and not known)
            case Pad(axis=axis, before=before, after=after):
                sizes = [xs[0].shape[axis], before, after]
            case _:  # of what keeps its axes but for those of one element, all are known
                known = zip(shape_of(node.type), self.axes[node.name], strict=True)
                return any(self.ended(n) and not self._is_known(a) for n, a in known)
        return any(map(self.ended, sizes))

    def _is_known(self, along: Along | None) -> bool:
        """Does it say where an axis ends?"""
        if along is None or along.dim == COUNTED:
            return along is not None
        return not self.ended(along.part.lo) and self.ends_known(along) is not None

    def _expect_own_rows(
        self, node: Node, xs: Sequence[MaskedOperand], own: tuple[Index, ...]
    ) -> None:
        """Refuses elements of several rows: no length says where each of them begins."""
        axes = [a for x in xs for a, n in zip(x.axes, x.shape, strict=True) if self.ended(n)]
        products = any(isinstance(e, Product) for n in shape_of(node.type) for e in walk(n))
        alone = set(self.rows.dims) <= set(node.domain.dims) and not products
        if not alone or not all(a is not None and a.rows == own for a in axes):
            pairs = zip(node.args, xs, strict=True)
            ragged = [str(a) for a, x in pairs if any(map(self.ended, x.shape))]
            self.refuse(
                f"{node.op.name} would join elements of rows that end at different points",
                f"{self.bound} is set row by row; it reads {', '.join(ragged)}",
                f"work on one row, x[.., 0:{self.bound}], at each point, or reduce each row first",
            )

    def _taken_at(self, ref: Ref, axis: int, at: Ref) -> Moved:
        """The elements along an axis that are at some places."""
        axes, c = LETTERS[: len(shape_of(self.g.type(ref)))], LETTERS[axis]
        new = LETTERS[len(axes)]
        return Take(labels=f"{axes},{new}->{axes.replace(c, new)}", axis=c), [ref, at]

    def _with(self, op: type[el.Elementwise], places: Ref, number: Any) -> Ref:
        """An op on places, of any number of axes, and a number."""
        axes = LETTERS[: len(shape_of(self.g.type(places)))]
        return self.emit(op(labels=join_labels((axes, ""), axes)), (places, self.number(number)))

    def length_along(self, operand: MaskedOperand, axis: int) -> tuple[Ref, str]:
        """The number of elements of an axis (i32), and the labels of the axes that it has."""
        mask, letters = self.mask(operand, axis)
        ones = self.emit(el.Cast(to="i32"), (mask,), "there")
        length = self.emit(Sum(axes=(letters.index(LETTERS[axis]),)), (ones,), "there_are")
        return length, letters.replace(LETTERS[axis], "")

    def told_lengths(self, op: Call, xs: list[MaskedOperand]) -> Call:
        """The call with a row cut at its end, by a length that it reads; zeros end each of many."""
        if any(self.ended(n) for _, shape in op.results for n in shape):
            self.refuse(
                f"{op.fn.key} gives rows that end at different points",
                f"{self.bound} is set row by row, while the program runs",
                f"let it give one point of a row, at every {self.time}",
            )
        lengths = list(op.lengths)
        for k, x in enumerate(tuple(xs)):
            for axis in (j for j, size in enumerate(x.shape) if self.ended(size)):
                length, rest = self.length_along(x, axis)
                if rest:
                    xs[k] = self.masked(xs[k], axis, 0)
                else:
                    lengths.append((k, axis, len(xs)))
                    xs.append(MaskedOperand(length, (), ()))
        return replace(op.at(self.by), lengths=tuple(lengths))

    def told_alive(self, node: Node, op: Call, xs: list[MaskedOperand]) -> Call:
        """The call; one without state, which no order of calls ends, with whether its row lasts."""
        point = {self.time, *self.rows.dims} <= {*node.domain.dims}
        if op.has_state or op.batch_dims or not point:
            return op
        box = self.domain(node)
        alive = self._alive_at(node, self.time, [0], box)
        if op.if_ is not None:  # rows of rows
            xs[op.if_] = MaskedOperand(self.joined(el.And(), [xs[op.if_].ref, alive], box), (), ())
            return op
        xs.append(MaskedOperand(alive, (), ()))
        return replace(op, if_=len(xs) - 1)

    def turned(self, x: MaskedOperand, axis: int) -> tuple[Take, Ref]:
        """Reverse the elements that exist, y[k] = x[length - 1 - k]: a take and its positions."""
        axes, c = LETTERS[: len(x.shape)], LETTERS[axis]
        length, rest = self.length_along(x, axis)
        one = self.emit(Const(value=1, dtype="i32"), ())
        place = self.emit(el.Add(labels="a,->a"), (self.places(x.shape[axis]), one), "place")
        back = el.Sub(labels=join_labels((rest, c), rest + c))
        at = self.emit(back, (length, place), "from_end")
        zero = self.emit(Const(value=0, dtype="i32"), ())
        inside = el.Maximum(labels=join_labels((rest + c, ""), rest + c))
        at = self.emit(inside, (at, zero), "turned")
        new = LETTERS[len(x.shape)]
        labels = f"{axes},{rest}{new}->{axes.replace(c, new)}"
        return Take(labels=labels, axis=c), at

    def taken(self, op: Take, operand: MaskedOperand, ref: Ref) -> tuple[Take, Ref]:
        """The take by positions that are before the end of the row."""
        lx, li, out = op.parts()
        length, rest = self.length_along(operand, lx.index(op.axis))
        rest = "".join(lx[LETTERS.index(c)] for c in rest)
        wide = "".join(c for c in rest if c not in li) + li
        one = self.emit(Const(value=1, dtype="i32"), ())
        after = el.Sub(labels=join_labels((rest, ""), rest))
        last = self.emit(after, (length, one), "last")
        at = ref if self.g.type(ref).dtype == "i32" else self.emit(el.Cast(to="i32"), (ref,))
        inside = el.Minimum(labels=join_labels((li, rest), wide))
        at = self.emit(inside, (at, last), f"{ref.name}_inside")
        return replace(op, labels=f"{lx},{wide}->{out}"), at

    def concat(self, node: Node, op: Concat, xs: Sequence[MaskedOperand]) -> Moved:
        """Each operand begins where those before it end."""
        sizes = [x.shape[op.axis] for x in xs]
        at = k = self.places(lin([(n, 1) for n in sizes]))
        for j in range(1, len(xs)):
            begin = lin([(n, 1) for n in sizes[:j]])
            gap = lin([(substitute(begin, self.by), 1), (begin, -1)])
            later = self.emit(el.LessEqual(labels=",a->a"), (self.number(begin), k))
            at = self.emit(el.Where(), (later, self._with(el.Add, k, gap), at))
        whole = self.emit(op, [x.ref for x in xs], f"{node.name}_all")
        return self._taken_at(whole, op.axis, at)

    def cut(self, node: Node, op: Cut, xs: Sequence[MaskedOperand]) -> Moved:
        at = self._with(el.Add, self.places(op.size), op.start)
        return self._taken_at(xs[0].ref, op.axis, at)

    def pad(self, node: Node, op: Pad, xs: Sequence[MaskedOperand]) -> Moved:
        """The number of the fill wherever no element is."""
        (x,) = xs
        size = shape_of(node.type)[op.axis]
        at = self._with(el.Sub, self.places(size), op.before)
        y = self.emit(*self._taken_at(x.ref, op.axis, self._with(el.Maximum, at, 0)))
        begun = self.emit(el.LessEqual(labels=",a->a"), (self.number(0), at))
        inside = self.emit(el.And(), (begun, self._with(el.Less, at, x.shape[op.axis])), "inside")
        axes, c = LETTERS[: len(x.shape)], LETTERS[op.axis]
        fill = self.emit(Const(value=op.value, dtype=self.g.type(y).dtype), ())
        where = el.Where(labels=join_labels((c, axes, ""), axes))
        return where, [inside, y, fill]

    def reshape(self, node: Node, op: Reshape, xs: Sequence[MaskedOperand]) -> Moved:
        """The place of each element among all that there are, and then in the padded operand."""
        (x,) = xs
        axes = LETTERS[: len(op.shape)]
        at = self.places(op.shape[0]) if op.shape else self.number(0)
        for j, n in enumerate(op.shape[1:], 1):
            labels = join_labels((axes[:j], axes[j]), axes[: j + 1])
            at = self.emit(el.Add(labels=labels), (self._with(el.Mul, at, n), self.places(n)))
        flat, stride = self._with(el.Mul, at, 0), 1
        for n in reversed(x.shape):
            inside = self._with(el.Mul, self._with(el.Mod, at, n), stride)
            flat = self.emit(el.Add(), (flat, inside))
            at, stride = self._with(el.FloorDivide, at, n), stride * substitute(n, self.by)
        one = self.emit(Reshape(shape=(stride,)), (x.ref,), f"{node.name}_flat")
        new = LETTERS[len(axes)]
        return Take(labels=f"{new},{axes}->{axes}", axis=new), [one, flat]


_RULES: dict[type[Op], Callable[..., Moved]] = {
    Concat: RowMoves.concat,
    Cut: RowMoves.cut,
    Pad: RowMoves.pad,
    Reshape: RowMoves.reshape,
}
