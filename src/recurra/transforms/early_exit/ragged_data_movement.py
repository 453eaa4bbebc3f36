"""Concatenate, cut, pad and reshape rows that the data end, by taking elements from positions.

concat(x[b,0:T], z)   →   take(concat(x[b,0:9], z), at),  at[k] = k < length ? k : k - length + 9
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from recurra.ir.expr import Expr, Product, lin, substitute, walk
from recurra.ir.graph import Node, Ref, Slice
from recurra.ir.op import LETTERS, Op, join_labels
from recurra.ops import elementwise as el
from recurra.ops.control import Call
from recurra.ops.indexing import Take
from recurra.ops.movement import Concat, Cut, Pad, Reshape
from recurra.ops.reduction import Sum
from recurra.transforms.early_exit.masked_reads import MaskedOperand, MaskedReads
from recurra.transforms.early_exit.ragged_axes import COUNTED, Along
from recurra.transforms.rewriter.rewriting import shape_of

Moved = tuple[Op, list[Ref]]


@dataclass
class RaggedMovement(MaskedReads):
    """Operators that move elements of rows to positions that depend on data."""

    def moved_by_data(self, node: Node, xs: Sequence[MaskedOperand]) -> Moved | None:
        """Rewrite a movement of elements along axes that end; None if it does not depend on data.

        Axes of the result whose end is not known otherwise have the length of their size.
        """
        rule, size = _RULES.get(type(node.op)), shape_of(node.type)
        if rule is None or not self._depends_on_data(node, xs):
            return None
        self._expect_own_rows(node, xs)
        self.axes[node.name] = tuple(
            a
            if self._has_known_end(a) or not self.is_dynamic(n)
            else Along(COUNTED, Slice(0, n), self.own_row)
            for n, a in zip(size, self.axes[node.name], strict=True)
        )
        return rule(self, node, node.op, xs)

    def _depends_on_data(self, node: Node, xs: Sequence[MaskedOperand]) -> bool:
        """Tell whether the length of an axis decides where elements go."""
        match node.op:
            case Concat(axis=axis):
                sizes = [x.shape[axis] for x in xs]
            case Cut(axis=axis, start=start, size=size):
                known = self._has_known_end(self.axes[node.name][axis])
                return self.is_dynamic(start) or (self.is_dynamic(size) and not known)
            case Pad(axis=axis, before=before, after=after):
                sizes = [xs[0].shape[axis], before, after]
            case _:  # if only axes of one element are added or removed, all ends are known
                known = zip(shape_of(node.type), self.axes[node.name], strict=True)
                return any(self.is_dynamic(n) and not self._has_known_end(a) for n, a in known)
        return any(map(self.is_dynamic, sizes))

    def _has_known_end(self, along: Along | None) -> bool:
        """Tell whether the run of an axis says where it ends."""
        if along is None or along.dim == COUNTED:
            return along is not None
        return not self.is_dynamic(along.part.lo) and self.known_ends(along) is not None

    def _expect_own_rows(self, node: Node, xs: Sequence[MaskedOperand]) -> None:
        """Refuse elements of several rows: no length says where each of them begins."""
        axes = [a for x in xs for a, n in zip(x.axes, x.shape, strict=True) if self.is_dynamic(n)]
        products = any(isinstance(e, Product) for n in shape_of(node.type) for e in walk(n))
        alone = set(self.rows.dims) <= set(node.domain.dims) and not products
        if not alone or not all(a is not None and a.rows == self.own_row for a in axes):
            self.refuse(
                f"{node.op.name} would join elements of rows that end at different points",
                f"{self.bound} is set row by row; it reads {self.ragged_reads(node, xs)}",
                f"work on one row, x[.., 0:{self.bound}], at each point, or reduce each row first",
            )

    def is_ragged(self, operand: MaskedOperand) -> bool:
        """Tell whether an operand has an axis that ends earlier in some rows."""
        return any(map(self.is_dynamic, operand.shape))

    def ragged_reads(self, node: Node, xs: Sequence[MaskedOperand]) -> str:
        """The reads of an equation that have ragged axes, in words."""
        pairs = zip(node.args, xs, strict=True)
        return ", ".join(str(a) for a, x in pairs if self.is_ragged(x))

    def _taken_at(self, ref: Ref, axis: int, at: Ref) -> Moved:
        """The op and the operands that take elements of an axis at some positions."""
        axes, c = LETTERS[: len(shape_of(self.g.type(ref)))], LETTERS[axis]
        new = LETTERS[len(axes)]
        return Take(labels=f"{axes},{new}->{axes.replace(c, new)}", axis=c), [ref, at]

    def _with_number(self, op: type[el.Elementwise], places: Ref, number: Expr | int) -> Ref:
        """Emit an op on positions, along any number of axes, and a number."""
        axes = LETTERS[: len(shape_of(self.g.type(places)))]
        return self.emit(op(labels=join_labels((axes, ""), axes)), (places, self.number(number)))

    def length_along(self, operand: MaskedOperand, axis: int) -> tuple[Ref, str]:
        """Emit the number of elements of an axis (i32); return it and its labels."""
        mask, letters = self.mask(operand, axis)
        ones = self.emit(el.Cast(to="i32"), (mask,), "there")
        length = self.emit(Sum(axes=(letters.index(LETTERS[axis]),)), (ones,), "there_are")
        return length, letters.replace(LETTERS[axis], "")

    def with_lengths(self, op: Call, xs: list[MaskedOperand]) -> Call:
        """The call with the length of a row as an operand; several rows are filled with zeros."""
        if any(self.is_dynamic(n) for _, shape in op.results for n in shape):
            self.refuse(
                f"{op.fn.key} gives rows that end at different points",
                f"{self.bound} is set row by row, while the program runs",
                f"let it give one point of a row, at every {self.time}",
            )
        lengths = list(op.lengths)
        for k, x in enumerate(tuple(xs)):
            for axis in (j for j, size in enumerate(x.shape) if self.is_dynamic(size)):
                length, rest = self.length_along(x, axis)
                if rest:
                    xs[k] = self.masked(xs[k], axis, 0)
                else:
                    lengths.append((k, axis, len(xs)))
                    xs.append(MaskedOperand(length, (), ()))
        return replace(op.at(self.by), lengths=tuple(lengths))

    def with_alive(self, node: Node, op: Call, xs: list[MaskedOperand]) -> Call:
        """The call; if it has no state, which would order calls, its row's mask is an operand."""
        point = {self.time, *self.rows.dims} <= {*node.domain.dims}
        if op.has_state or op.batch_dims or not point:
            return op
        box = self.domain(node)
        alive = self._is_alive(node, self.time, [0], box)
        if op.if_ is not None:  # rows of rows
            xs[op.if_] = MaskedOperand(
                self.combined(el.And(), [xs[op.if_].ref, alive], box), (), ()
            )
            return op
        xs.append(MaskedOperand(alive, (), ()))
        return replace(op, if_=len(xs) - 1)

    def reversed(self, x: MaskedOperand, axis: int) -> tuple[Take, Ref]:
        """The take, and its positions, that reverse existing elements: y[k] = x[length - 1 - k]."""
        axes, c = LETTERS[: len(x.shape)], LETTERS[axis]
        length, rest = self.length_along(x, axis)
        one = self.const(1, "i32")
        place = self.emit(el.Add(labels="a,->a"), (self.positions(x.shape[axis]), one), "place")
        back = el.Sub(labels=join_labels((rest, c), rest + c))
        at = self.emit(back, (length, place), "from_end")
        zero = self.const(0, "i32")
        inside = el.Maximum(labels=join_labels((rest + c, ""), rest + c))
        at = self.emit(inside, (at, zero), "turned")
        new = LETTERS[len(x.shape)]
        labels = f"{axes},{rest}{new}->{axes.replace(c, new)}"
        return Take(labels=labels, axis=c), at

    def take_inside(self, op: Take, operand: MaskedOperand, ref: Ref) -> tuple[Take, Ref]:
        """The take, and its positions, limited to the length of the row."""
        lx, li, out = op.parts()
        length, rest = self.length_along(operand, lx.index(op.axis))
        rest = "".join(lx[LETTERS.index(c)] for c in rest)
        wide = "".join(c for c in rest if c not in li) + li
        one = self.const(1, "i32")
        after = el.Sub(labels=join_labels((rest, ""), rest))
        last = self.emit(after, (length, one), "last")
        at = ref if self.g.type(ref).dtype == "i32" else self.emit(el.Cast(to="i32"), (ref,))
        inside = el.Minimum(labels=join_labels((li, rest), wide))
        at = self.emit(inside, (at, last), f"{ref.name}_inside")
        return replace(op, labels=f"{lx},{wide}->{out}"), at

    def concat(self, node: Node, op: Concat, xs: Sequence[MaskedOperand]) -> Moved:
        """Begin each operand where those before it end."""
        sizes = [x.shape[op.axis] for x in xs]
        at = k = self.positions(lin([(n, 1) for n in sizes]))
        for j in range(1, len(xs)):
            begin = lin([(n, 1) for n in sizes[:j]])
            gap = lin([(substitute(begin, self.by), 1), (begin, -1)])
            later = self.emit(el.LessEqual(labels=",a->a"), (self.number(begin), k))
            at = self.emit(el.Where(), (later, self._with_number(el.Add, k, gap), at))
        whole = self.emit(op, [x.ref for x in xs], f"{node.name}_all")
        return self._taken_at(whole, op.axis, at)

    def cut(self, node: Node, op: Cut, xs: Sequence[MaskedOperand]) -> Moved:
        at = self._with_number(el.Add, self.positions(op.size), op.start)
        return self._taken_at(xs[0].ref, op.axis, at)

    def pad(self, node: Node, op: Pad, xs: Sequence[MaskedOperand]) -> Moved:
        """Put the fill value where there is no element."""
        (x,) = xs
        size = shape_of(node.type)[op.axis]
        at = self._with_number(el.Sub, self.positions(size), op.before)
        y = self.emit(*self._taken_at(x.ref, op.axis, self._with_number(el.Maximum, at, 0)))
        begun = self.emit(el.LessEqual(labels=",a->a"), (self.number(0), at))
        inside = self.emit(
            el.And(), (begun, self._with_number(el.Less, at, x.shape[op.axis])), "inside"
        )
        axes, c = LETTERS[: len(x.shape)], LETTERS[op.axis]
        fill = self.const(op.value, self.g.type(y).dtype)
        where = el.Where(labels=join_labels((c, axes, ""), axes))
        return where, [inside, y, fill]

    def reshape(self, node: Node, op: Reshape, xs: Sequence[MaskedOperand]) -> Moved:
        """Find the position of each element among all that exist, then in the padded operand."""
        (x,) = xs
        axes = LETTERS[: len(op.shape)]
        at = self.positions(op.shape[0]) if op.shape else self.number(0)
        for j, n in enumerate(op.shape[1:], 1):
            labels = join_labels((axes[:j], axes[j]), axes[: j + 1])
            at = self.emit(
                el.Add(labels=labels), (self._with_number(el.Mul, at, n), self.positions(n))
            )
        flat, stride = self._with_number(el.Mul, at, 0), 1
        for n in reversed(x.shape):
            inside = self._with_number(el.Mul, self._with_number(el.Mod, at, n), stride)
            flat = self.emit(el.Add(), (flat, inside))
            at, stride = self._with_number(el.FloorDivide, at, n), stride * substitute(n, self.by)
        one = self.emit(Reshape(shape=(stride,)), (x.ref,), f"{node.name}_flat")
        new = LETTERS[len(axes)]
        return Take(labels=f"{new},{axes}->{axes}", axis=new), [one, flat]


_RULES: dict[type[Op], Callable[..., Moved]] = {
    Concat: RaggedMovement.concat,
    Cut: RaggedMovement.cut,
    Pad: RaggedMovement.pad,
    Reshape: RaggedMovement.reshape,
}
