"""Reads of rows that end: at points, at the end of a row, and in ranges, masked past the end.

sum(x[b,t:T])    →   x_alive[b<B,t<9] = where(alive, x, 0);  sum(x_alive[b,t:9])
x[b,T-1]         →   x_last[b,8], with x_last[b,t] = where(alive, x, x_last[b,t-1])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from recurra.ir.expr import TRUE, Expr, Ext, Sym, all_of, compare, lin, negate, substitute, symbols
from recurra.ir.graph import Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import LETTERS, join_labels
from recurra.ir.types import Domain, Range, Tuple
from recurra.ops import elementwise as el
from recurra.ops.control import Call, Merge
from recurra.ops.indexing import Take
from recurra.ops.reduction import Any_, Sum
from recurra.ops.source import Value
from recurra.polyhedral import isl
from recurra.transforms.early_exit.ragged_axes import COUNTED, Along, Axes
from recurra.transforms.early_exit.row_lengths import RowLengths, choice, terms
from recurra.transforms.early_exit.zero_masks import NOTHING, Zeros
from recurra.transforms.padding.padded_axes import unused_name
from recurra.transforms.rewriter.rewriting import Rewriting, shape_of


@dataclass(frozen=True)
class MaskedOperand:
    """An operand: the sizes and the runs of its axes, as the program has them.

    `read` is the read in the program, if the operand is one of an equation as it is.
    """

    ref: Ref
    shape: tuple[Expr | int, ...]
    axes: Axes
    read: Ref | None = None


@dataclass
class MaskedReads(RowLengths):
    """The reads of an equation in the program with a number for T."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.zeros = Zeros(self.graph, frozenset(self.timed))
        self.written = Rewriting.of(self.graph, {})

    def operand(self, node: Node, position: int) -> MaskedOperand:
        """The operand at `position`, with the number for T in its indices."""
        a, source = node.args[position], self.graph[node.args[position].name]
        name = self._row_read(node, position, a, source)
        index: list[Index] = []
        lead: list[Along | None] = []
        last: tuple[int, Any] | None = None
        for j, (r, e) in enumerate(zip(source.domain, a.index, strict=True)):
            timed = r.dim in self.timed
            if self.is_dynamic(e) and (
                not timed or (isinstance(e, Slice) and self.is_dynamic(e.lo))
            ):
                self.refuse(
                    f"the read of {a} starts where a row ends"
                    if timed
                    else f"{a} is read at {self.bound}, which differs from row to row",
                    f"{self.bound} is set by {self.ending.done}, while the program runs",
                    f"read one point before the end, x[.., {self.bound}-1], or choose by rc.where",
                    position,
                )
            if isinstance(e, Slice):
                role = self.original_dim(r.dim)
                if timed:
                    lead.append(Along(self.time, e, self._row_index(source, a, r.dim)))
                else:
                    lead.append(Along(role, e) if role in self.rows.dims else None)
                index.append(e.at(self.by))
            elif self.is_dynamic(e):
                if a.name in self.per_row:
                    rows = ", ".join(self.ending_dims)
                    self.refuse(
                        f"{a} reads the end of a row, and {a.name} is in none",
                        f"{self.bound} is set by {self.ending.done} over {rows}; {a.name} is over "
                        f"{', '.join(source.domain.dims)}",
                        f"define it for every row: rc.like(rc.f32, domain=({rows}))",
                        position,
                    )
                last = j, e
                index.append(e)
            else:
                index.append(e)
        if isinstance(source.type, Tuple):
            return MaskedOperand(Ref(a.name, tuple(index)), (), ())
        points, ranges = a.parts(source.domain)
        own = [x and x.at(points, {*ranges}) for x in self.axes[a.name]]
        shape = shape_of(self.graph.read_type(a))
        axes = self.with_row_axes(shape, (*lead, *own))
        if last is not None:
            return MaskedOperand(self._at_end(position, source, tuple(index), *last), shape, axes)
        return MaskedOperand(Ref(name, tuple(index)), shape, axes, a if name == a.name else None)

    def _row_index(self, source: Node, ref: Ref, dim: str) -> tuple[Index, ...]:
        """The row whose time is the dim of a source; by default, the own row."""
        own: dict[str, Index] = {r.dim: r.sym for r in self.rows}
        by = own | dict(zip(source.domain.dims, ref.index, strict=True))
        graph = self.graph
        k = graph.adjoints(graph.first_of(dim)).index(dim) if dim != self.time else -1
        same = (graph.adjoints(r.dim)[k : k + 1] if k >= 0 else () for r in self.rows)
        return tuple(
            by[next((d for d in found if d in by), r.dim)]
            for r, found in zip(self.rows, same, strict=True)
        )

    def _row_read(self, node: Node, index: int, ref: Ref, source: Node) -> str:
        """The name to read of a source, of which points of other rows may be past their end.

        Such reads are zero in sums of gradients, and refused elsewhere.
        """
        if isinstance(node.op, Call) or self.is_alive_mask(source):  # false where these have ended
            return ref.name
        pairs = list(zip(source.domain, ref.index, strict=True))
        if not any(r.dim in self.timed and index_symbols(e) & self.timed for r, e in pairs):
            return ref.name  # all of a row, its first points, or its end
        for r, e in pairs:
            role = self.original_dim(r.dim)
            own = isinstance(e, Sym) and self.original_dim(e.name) == role
            if role in self.rows.dims and not own:
                if isinstance(node.op, Sum) and (NOTHING, ref.name) in self.zeros.holds:
                    return self.masked_equation(self.g[ref.name], 0)
                self.refuse(
                    f"{ref} reads points of other rows, which may have ended",
                    f"{self.bound} is set row by row, by {self.ending.done} over "
                    f"{', '.join(self.ending_dims)}; here {r.dim} is {e}",
                    f"read all of them, x[0:{r.hi}, .., 0:{self.bound}], or the end of one: "
                    f"x[.., {self.bound}-1]",
                    index,
                )
        return ref.name

    def _at_end(
        self, position: int, source: Node, index: tuple[Index, ...], column: int, expr: Expr
    ) -> Ref:
        """A read x[T-c] or x[min(a, T-c)]."""
        r = source.domain.ranges[column]
        late = [x for x in (expr.args if isinstance(expr, Ext) else (expr,)) if self.is_dynamic(x)]
        early = [x for x in (expr.args if isinstance(expr, Ext) else ()) if not self.is_dynamic(x)]
        c = self._distance_to_end(late[0]) if len(late) == 1 else None
        if c is None or c < 1 or (isinstance(expr, Ext) and expr.op != "min") or len(early) > 1:
            return self._read_by_number(source, index, column, expr, position)
        back = self._reads_backward(source, index, r.dim)
        last = self._last_value_backward(source, r, c) if back else self._last_value(source, r, c)
        at = r.sym + 1 if back else self.ending.most - 1
        at_end = self._zero_outside(Ref(last, index).with_index(column, at))
        if not early:
            return at_end
        (a,) = early
        now = self._zero_outside(Ref(source.name, index).with_index(column, a))
        reach = self.is_before_end(lin([(a, 1), (c - 1, 1)]), self._row_of(source, index, r.dim))
        op = choice(len(shape_of(source.type)))
        return self.emit(op, (reach, now, at_end), f"{source.name}_or_last")

    def _read_by_number(
        self, source: Node, index: tuple[Index, ...], column: int, expr: Expr, position: int
    ) -> Ref:
        """A read x[T//2] or x[T-1-t]: one point, taken by number, of all points of a row."""
        r = self.static(source.domain).ranges[column]
        if self._row_of(source, index, r.dim) != self.own_row:
            self.refuse(
                f"{Ref(source.name, index)} reads a point that only the data know, of other rows",
                f"{self.bound} is set while the program runs, and differs from row to row",
                f"read it in each row first: y = x[.., {expr}] * 1.0; then y[0:B]",
                position,
            )
        self._expect_one_length(source)
        row = Ref(source.name, index).with_index(column, Slice(r.lo, r.hi))
        axes = LETTERS[: len(shape_of(self.g.type(row)))]
        axis = axes[sum(isinstance(x, Slice) for x in index[:column])]
        at = self.number(lin([(expr, 1), (r.lo, -1)]))
        op = Take(labels=f"{axes},->{axes.replace(axis, '')}", axis=axis)
        return self.emit(op, (row, at), f"{source.name}_at")

    def _expect_one_length(self, source: Node) -> None:
        """Refuse points of different lengths, which no array holds."""
        shape = shape_of(source.type)
        if any(self.is_dynamic(s) or symbols(s) & set(source.domain.dims) for s in shape):
            self.refuse(
                f"{source.name} has no last value",
                f"its points have different lengths: {source.type}",
                "reduce them first",
            )

    def _row_of(self, source: Node, index: tuple[Index, ...], dim: str) -> tuple[Index, ...]:
        return self._row_index(source, Ref(source.name, index), dim)

    def _last_value(self, source: Node, extent: Range, c: int) -> str:
        """Add x_last[t] = x[t-c+1] while t is a point of the row, then what it was."""
        name = f"{source.name}_last" + (str(c) if c > 1 else "")
        if name in self.g.nodes:
            return name
        self._expect_one_length(source)
        t, box = extent.sym, self.static(source.domain)
        lo = lin([(extent.lo, 1), (c - 1, 1)])
        hold, later = (box.with_range(replace(box[extent.dim], lo=e)) for e in (lo, lo + 1))
        was = Ref(source.name, box.point(extent.dim, t + (1 - c)))
        type_ = self.g[source.name].type
        node = Node(name, Merge(when=(TRUE,)), (was,), hold, type_, self.n.loc)
        self.g.put(node)
        here = self.is_before_any_end(t, source, extent.dim, later)
        held = Ref(name, hold.point(extent.dim, t - 1))
        now = self.emit(choice(source.tensor.rank), (here, was, held), f"{name}_now", later)
        when = (compare("==", t, lo), compare(">", t, lo))
        self.g.put(replace(node, op=Merge(when=when), args=(was, now)))
        return name

    def _reads_backward(self, source: Node, index: tuple[Index, ...], dim: str) -> bool:
        """Tell whether the equation reads the end of its own row, on which it depends there."""
        others = [(r, e) for r, e in zip(source.domain, index, strict=True) if r.dim != dim]
        return (
            dim in self.n.domain
            and all(e == r.sym for r, e in others)
            and self.written.reaches(source.name, self.n.name, [r.dim for r, _ in others])
        )

    def _last_value_backward(self, source: Node, extent: Range, c: int) -> str:
        """Add x_end[t] = x[t] where t is T-c, and before that what it will be."""
        name = f"{source.name}_end" + (str(c) if c > 1 else "")
        if name in self.g.nodes:
            return name
        self._expect_one_length(source)
        t, box = extent.sym, self.static(source.domain)
        hold, early = (
            box.with_range(replace(box[extent.dim], hi=self.ending.most - k)) for k in (c - 1, c)
        )
        own = self._row_of(source, box.identity, extent.dim)
        was = self.g.read(source.name)
        node = Node(name, Merge(when=(TRUE,)), (was,), hold, self.g[source.name].type, self.n.loc)
        self.g.put(node)
        longer = self.is_before_end(t + c, own, early)
        later = Ref(name, hold.point(extent.dim, t + 1))
        now = self.emit(choice(source.tensor.rank), (longer, later, was), f"{name}_now", early)
        last = hold[extent.dim].hi - 1
        when = (compare("==", t, last), compare("<", t, last))
        self.g.put(replace(node, op=Merge(when=when), args=(was, now)))
        return name

    def is_before_any_end(self, expr: Expr | int, source: Node, dim: str, box: Domain) -> Ref:
        """Emit whether e < T in the row of a source, or in any of those it does not vary with."""
        point = Ref(source.name, self.static(source.domain).identity)
        own = self._row_index(source, point, dim)
        rows = [
            x if symbols(x) <= set(box.dims) else Slice(r.lo, r.hi)  # pyright: ignore[reportArgumentType]
            for r, x in zip(self.static(self.rows), own, strict=True)
        ]
        axes = tuple(range(sum(isinstance(x, Slice) for x in rows)))
        here = self.is_before_end(expr, rows, box)
        return self.emit(Any_(axes=axes), (here,), "alive_any", box) if axes else here

    def _zero_outside(self, ref: Ref) -> Ref:
        """The read where it is inside of its source, elsewhere unused zeros."""
        source, box = self.g[ref.name], self.domain(self.n)
        where: list[Expr] = []
        for r, e in zip(source.domain, ref.index, strict=True):
            lo, hi = (e.lo, e.hi) if isinstance(e, Slice) else (e, e)
            end = "<=" if isinstance(e, Slice) else "<"
            where += [compare(">=", lo, r.lo), compare(end, hi, r.hi)]
        cond = all_of(*(c for c in where if not isl.always(c, box)))
        if cond == TRUE:
            return ref
        type_ = self.g.type(ref)
        zero = self.const(0, type_.dtype, shape=type_.shape)
        op = Merge(when=(cond, negate(cond)))
        return self.g.emit(op, (ref, zero), box, f"{ref.name}_or_0")

    # ---- masks

    def masked(self, operand: MaskedOperand, axis: int, fill: float) -> MaskedOperand:
        """Set elements past the end of each row, along an axis, to `fill`."""
        along = self.along(operand, axis)
        if operand.read is not None and axis < len(operand.read.slices):
            source = self.graph[operand.read.name]
            pairs = zip(source.domain, operand.ref.index, strict=True)
            dim = [r.dim for r, e in pairs if isinstance(e, Slice)][axis]
            ends = self._expect_known_ends(along)
            plain = fill == 0 and ends == [0] and self.zeros.time(source)
            if plain and self.zeros.mask(operand.ref.name):
                return operand
            box = self.static(source.domain)
            alive = self._is_alive(source, dim, ends, box)
            y = self._where_alive(alive, self.g.read(source.name), box, fill)
            return replace(operand, ref=replace(operand.ref, name=y.name), read=None)
        axes = LETTERS[: len(operand.shape)]
        mask, letters = self.mask(operand, axis)
        args = (mask, operand.ref, self.const(fill, self.g.type(operand.ref).dtype))
        op = el.Where(labels=join_labels((letters, axes, ""), axes))
        return replace(operand, ref=self.emit(op, args, f"{operand.ref.name}_alive"))

    def mask(self, operand: MaskedOperand, axis: int) -> tuple[Ref, str]:
        """Emit the mask of the elements of an axis that exist; return it and its labels."""
        along, masks, letters = self.along(operand, axis), list[Ref](), ""
        if along.dim == COUNTED:
            if along.rows != self.own_row:
                self.refuse_lost(operand)
            length = self.number(lin([(along.part.hi, 1), (along.part.lo, -1)]))
            place = self.positions(operand.shape[axis])
            inside = self.emit(el.Less(labels="a,->a"), (place, length), "inside")
            return inside, LETTERS[axis]
        for c in self._expect_known_ends(along):
            part: Any = along.part.at(self.by)
            moved = Slice(part.lo + c, part.hi + c, part.step)
            index, letters, gone = self._mask_index(operand, axis, along, moved)
            here = Ref(self.alive, index)
            masks.append(self.emit(Any_(axes=gone), (here,), "alive_any") if gone else here)
        return self.combined(el.And(), masks), letters

    def positions(self, size: Expr | int) -> Ref:
        """Emit the positions along an axis."""
        k = unused_name(self.graph)
        op = Value(expr=Sym(k), dtype="i32", bind=((k, substitute(size, self.by), 0),))
        return self.emit(op, (), "place")

    def masked_rows(self, operand: MaskedOperand, fill: float) -> MaskedOperand:
        """Set an operand to `fill` where its row has no point, also along its axes."""
        for axis, size in enumerate(operand.shape):
            operand = self.masked(operand, axis, fill) if self.is_dynamic(size) else operand
        if operand.ref.name not in self.graph.nodes:
            return operand
        y = self.masked_equation(self.g[operand.ref.name], fill)
        return replace(operand, ref=Ref(y, operand.ref.index), read=None)

    def masked_equation(self, node: Node, fill: float) -> str:
        """Add an equation that is `fill` where the row has no point; return its name."""
        box = node.domain
        times = [r for r in box if r.dim in self.timed]
        if not times:
            return node.name
        here = self.combined(
            el.And(), [self.is_before_any_end(r.sym, node, r.dim, box) for r in times], box
        )
        return self._where_alive(here, self.g.read(node.name), box, fill).name

    def _is_alive(self, source: Node, dim: str, ends: Sequence[int], box: Domain) -> Ref:
        """Emit whether points of a source are before all ends T - c.

        For sums of gradients over rows, in any row.
        """
        rows = self._row_of(source, box.identity, dim)
        if (NOTHING, source.name) in self.zeros.holds:
            here = [self.is_before_any_end(Sym(dim) + c, source, dim, box) for c in ends]
        else:
            here = [self.is_before_end(Sym(dim) + c, rows, box) for c in ends]
        return self.combined(el.And(), here, box)

    def _where_alive(self, alive: Ref, ref: Ref, box: Domain, fill: float) -> Ref:
        type_ = self.g.type(ref)
        other = self.const(fill, type_.dtype)
        op = choice(type_.rank, both=False)
        return self.g.emit(op, (alive, ref, other), box, f"{ref.name}_alive")

    def _mask_index(
        self, operand: MaskedOperand, axis: int, along: Along, part: Slice
    ) -> tuple[tuple[Index, ...], str, tuple[int, ...]]:
        """The index of `alive` for an operand, the labels of its axes, and those to reduce."""
        axes, index, letters = LETTERS[: len(operand.shape)], list[Index](), ""
        gone = list[int]()
        rows = dict(zip(self.rows.dims, enumerate(along.rows), strict=True))
        for r in self.graph[self.ending.done].domain:
            if r.dim == self.time:
                index.append(part)
                letters += axes[axis]
                continue
            k, e = rows[r.dim]
            index.append(e)
            if k in along.longest:
                gone.append(len(letters) + len(gone))
            elif isinstance(e, Slice):
                at = self.row_axis_of(operand, r, e)
                letters += axes[self.refuse_lost(operand) if at is None else at]
        return tuple(index), letters, tuple(gone)

    def row_axis_of(self, operand: MaskedOperand, extent: Range, part: Slice) -> int | None:
        """The axis of an operand that runs along some rows."""
        pairs = list(enumerate(zip(operand.axes, operand.shape, strict=True)))
        whole = part == Slice(extent.lo, extent.hi)
        found = [k for k, (a, _) in pairs if a == Along(extent.dim, part)]
        found += [k for k, (_, n) in pairs if whole and n == extent.hi]
        return found[0] if found else None

    def row_axes(self, operand: MaskedOperand, axis: int) -> list[int | None]:
        """The axes along which those rows run that end along an axis; None for one that is lost."""
        along = operand.axes[axis]
        if along is None or along.dim == COUNTED:
            return []
        rows = enumerate(zip(self.rows, along.rows, strict=True))
        return [
            self.row_axis_of(operand, r, e)
            for k, (r, e) in rows
            if isinstance(e, Slice) and k not in along.longest
        ]

    def along(self, operand: MaskedOperand, axis: int) -> Along:
        """The run of an axis; refuses one that was lost."""
        return operand.axes[axis] or self.refuse_lost(operand)

    def with_row_axes(self, shape: Sequence[Any], axes: Axes) -> Axes:
        """Give axes of size T - t or min(T, t+5) - t the run of x[t:T].

        Gradients have such axes, those of their values.
        """
        out, own = list(axes), self.domain(self.n)
        for axis, size in enumerate(shape):
            if axes[axis] is not None or not self.is_dynamic(size):
                continue
            ends = [x for x, k in terms(size) if k == 1 and self.is_dynamic(x)]
            hi: Expr | int = ends[0] if len(ends) == 1 else self.sym
            lo = lin([(hi, 1), (size, -1)])
            rows = [
                Slice(r.lo, r.hi) if r.hi in shape else r.sym if r.dim in own else None
                for r in self.rows
            ]
            if None not in rows:
                known = tuple(e for e in rows if e is not None)
                longer = self.is_dynamic(lo) or (isinstance(lo, int) and lo < 0)  # T+2, 2*T
                part = (COUNTED, Slice(0, size)) if longer else (self.time, Slice(lo, hi))
                out[axis] = Along(*part, known)
        return tuple(out)

    def refuse_lost(self, operand: MaskedOperand) -> NoReturn:
        self.refuse(
            f"{self.n.op.name} mixes the elements of rows that end at different points",
            f"it cannot be said which rows the axes {', '.join(map(str, operand.shape))} of "
            f"{operand.ref.name} run along",
            "reduce x[.., 0:T] itself, before it is reshaped or joined",
        )

    def known_ends(self, along: Along) -> list[int] | None:
        """The c of each T - c at which an axis ends; None if it ends elsewhere, as at T - t."""
        hi = along.part.hi
        args = hi.args if isinstance(hi, Ext) and hi.op == "min" else (hi,)
        found = [self._distance_to_end(e) for e in args if self.is_dynamic(e)]
        out = [c for c in found if c is not None and c >= 0]
        return out if len(out) == len(found) else None

    def _expect_known_ends(self, along: Along) -> list[int]:
        """The known ends of an axis; refuses others."""
        out = self.known_ends(along)
        if out is None:
            self.refuse(
                f"a range ends at {along.part.hi}",
                f"{self.bound} is set while the program runs; a range may end at {self.bound}, "
                f"{self.bound}-1 or rc.min(t+5, {self.bound})",
                "choose by rc.where",
            )
        return out
