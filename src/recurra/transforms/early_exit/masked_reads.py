"""Reads of rows that end: at points, at their end, and in ranges, with a mask past the end.

sum(x[b,t:T])    →   x_alive[b<B,t<9] = where(alive, x, 0);  sum(x_alive[b,t:9])
x[b,T-1]         →   x_last[b,8], with x_last[b,t] = where(alive, x, x_last[b,t-1])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from recurra.ir.expr import TRUE, Expr, Ext, Sym, both, compare, lin, negate, substitute, symbols
from recurra.ir.graph import Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import LETTERS, join_labels
from recurra.ir.types import Domain, Range, Tuple
from recurra.ops import elementwise as el
from recurra.ops.control import Call, Merge
from recurra.ops.indexing import Take
from recurra.ops.reduction import Any_, Sum
from recurra.ops.source import Const, Value
from recurra.polyhedral import isl
from recurra.transforms.early_exit.ragged_axes import COUNTED, Along, Axes
from recurra.transforms.early_exit.row_lengths import RowEnds, choice, terms
from recurra.transforms.early_exit.zero_masks import NOTHING, Zeros
from recurra.transforms.padding.state import unused_name
from recurra.transforms.rewriter.rewriting import Rewriting, shape_of


@dataclass(frozen=True)
class MaskedOperand:
    """An operand: its sizes as the program has them, and what its axes run along."""

    ref: Ref
    shape: tuple[Expr | int, ...]
    axes: Axes
    whole: Ref | None = None  # the read in the program, where it is one of an equation of it


@dataclass
class Reads(RowEnds):
    """The reads of an equation, where the program with a number for the bound does them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.zeros = Zeros(self.graph, frozenset(self.timed))
        self.written = Rewriting.of(self.graph, {})

    def operand(self, node: Node, position: int) -> MaskedOperand:
        """MaskedOperand `position`, read where the static program reads it."""
        a, source = node.args[position], self.graph[node.args[position].name]
        name = self._of_one_row(node, position, a, source)
        index: list[Index] = []
        lead: list[Along | None] = []
        last: tuple[int, Any] | None = None
        for j, (r, e) in enumerate(zip(source.domain, a.index, strict=True)):
            timed = r.dim in self.timed
            if self.ended(e) and (not timed or (isinstance(e, Slice) and self.ended(e.lo))):
                self.refuse(
                    f"the read of {a} starts where a row ends"
                    if timed
                    else f"{a} is read at {self.bound}, which differs from row to row",
                    f"{self.bound} is set by {self.ending.done}, while the program runs",
                    f"read one point before the end, x[.., {self.bound}-1], or choose by rc.where",
                    position,
                )
            if isinstance(e, Slice):
                role = self.role(r.dim)
                if timed:
                    lead.append(Along(self.time, e, self._row_index(source, a, r.dim)))
                else:
                    lead.append(Along(role, e) if role in self.rows.dims else None)
                index.append(e.at(self.by))
            elif self.ended(e):
                if a.name in self.grown:
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
        if last is not None:
            ref = self._at_end(position, source, tuple(index), *last)
            return MaskedOperand(ref, shape, self.whole(shape, (*lead, *own)))
        whole = a if name == a.name else None
        return MaskedOperand(
            Ref(name, tuple(index)), shape, self.whole(shape, (*lead, *own)), whole
        )

    def _row_index(self, source: Node, ref: Ref, dim: str) -> tuple[Index, ...]:
        """The row whose time `dim` of a source is: rows that it does not vary with are our own."""
        own: dict[str, Index] = {r.dim: r.sym for r in self.rows}
        by = own | dict(zip(source.domain.dims, ref.index, strict=True))
        graph = self.graph
        k = graph.adjoints(graph.first_of(dim)).index(dim) if dim != self.time else -1
        same = (graph.adjoints(r.dim)[k : k + 1] if k >= 0 else () for r in self.rows)
        return tuple(
            by[next((d for d in found if d in by), r.dim)]
            for r, found in zip(self.rows, same, strict=True)
        )

    def _of_one_row(self, node: Node, index: int, ref: Ref, source: Node) -> str:
        """The name to read of a source: points of another row may lie past its end.

        They are nothing in sums of gradients, and refused elsewhere.
        """
        if isinstance(node.op, Call) or self.says_alive(source):  # false where these have ended
            return ref.name
        pairs = list(zip(source.domain, ref.index, strict=True))
        if not any(r.dim in self.timed and index_symbols(e) & self.timed for r, e in pairs):
            return ref.name  # all of a row, its first points, or its end
        for r, e in pairs:
            role = self.role(r.dim)
            own = isinstance(e, Sym) and self.role(e.name) == role
            if role in self.rows.dims and not own:
                if isinstance(node.op, Sum) and (NOTHING, ref.name) in self.zeros.holds:
                    return self.ended_with(self.g[ref.name], 0)
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
        """x[T-c], or x[min(a, T-c)]."""
        r = source.domain.ranges[column]
        late = [x for x in (expr.args if isinstance(expr, Ext) else (expr,)) if self.ended(x)]
        early = [x for x in (expr.args if isinstance(expr, Ext) else ()) if not self.ended(x)]
        c = self._before_end(late[0]) if len(late) == 1 else None
        if c is None or c < 1 or (isinstance(expr, Ext) and expr.op != "min") or len(early) > 1:
            return self._by_number(source, index, column, expr, position)
        back = self._closes_row(source, index, r.dim)
        held = self._held_back(source, r, c) if back else self._held(source, r, c)
        at = r.sym + 1 if back else self.ending.most - 1
        at_end = self._inside(Ref(held, (*index[:column], at, *index[column + 1 :])))
        if not early:
            return at_end
        (a,) = early
        now = self._inside(Ref(source.name, (*index[:column], a, *index[column + 1 :])))
        reach = self.before(lin([(a, 1), (c - 1, 1)]), self._row_of(source, index, r.dim))
        op = choice(len(shape_of(source.type)))
        return self.emit(op, (reach, now, at_end), f"{source.name}_or_last")

    def _by_number(
        self, source: Node, index: tuple[Index, ...], column: int, expr: Expr, position: int
    ) -> Ref:
        """x[T//2], x[T-1-t]: of all points of a row the one that a number says."""
        r = self.static(source.domain).ranges[column]
        if self._row_of(source, index, r.dim) != tuple(own.sym for own in self.rows):
            self.refuse(
                f"{Ref(source.name, index)} reads a point that only the data know, of other rows",
                f"{self.bound} is set while the program runs, and differs from row to row",
                f"read it in each row first: y = x[.., {expr}] * 1.0; then y[0:B]",
                position,
            )
        self._level(source)
        row = Ref(source.name, (*index[:column], Slice(r.lo, r.hi), *index[column + 1 :]))
        axes = LETTERS[: len(shape_of(self.g.type(row)))]
        axis = axes[sum(isinstance(x, Slice) for x in index[:column])]
        at = self.number(lin([(expr, 1), (r.lo, -1)]))
        op = Take(labels=f"{axes},->{axes.replace(axis, '')}", axis=axis)
        return self.emit(op, (row, at), f"{source.name}_at")

    def _level(self, source: Node) -> None:
        """Refuses points of different lengths, which no array holds."""
        shape = shape_of(source.type)
        if any(self.ended(s) or symbols(s) & set(source.domain.dims) for s in shape):
            self.refuse(
                f"{source.name} has no last value",
                f"its points have different lengths: {source.type}",
                "reduce them first",
            )

    def _row_of(self, source: Node, index: tuple[Index, ...], dim: str) -> tuple[Index, ...]:
        return self._row_index(source, Ref(source.name, index), dim)

    def _held(self, source: Node, extent: Range, c: int) -> str:
        """x_last[t] = x[t-c+1] while t is a point of the row, then what it was."""
        name = f"{source.name}_last" + (str(c) if c > 1 else "")
        if name in self.g.nodes:
            return name
        self._level(source)
        shape = shape_of(source.type)
        box = self.static(source.domain)
        lo = lin([(extent.lo, 1), (c - 1, 1)])
        hold, later = (box.with_range(replace(box[extent.dim], lo=e)) for e in (lo, lo + 1))
        old = self.g[source.name]
        was = Ref(source.name, box.point(extent.dim, extent.sym + (1 - c)))
        node = Node(name, Merge(when=(TRUE,)), (was,), hold, old.type, self.n.loc)
        self.g.put(node)
        here = self.any_before(extent.sym, source, extent.dim, later)
        op = choice(len(shape))
        kept = Ref(name, hold.point(extent.dim, extent.sym - 1))
        now = self.emit(op, (here, was, kept), f"{name}_now", later)
        when = (compare("==", extent.sym, lo), compare(">", extent.sym, lo))
        self.g.put(replace(node, op=Merge(when=when), args=(was, now)))
        return name

    def _closes_row(self, source: Node, index: tuple[Index, ...], dim: str) -> bool:
        """Is the end of its own row read by what the source needs there, backward in time?"""
        others = [(r, e) for r, e in zip(source.domain, index, strict=True) if r.dim != dim]
        return (
            dim in self.n.domain
            and all(e == r.sym for r, e in others)
            and self.written.reaches(source.name, self.n.name, [r.dim for r, _ in others])
        )

    def _held_back(self, source: Node, extent: Range, c: int) -> str:
        """x_end[t] = x[t] where t is T-c, before that what it will be."""
        name = f"{source.name}_end" + (str(c) if c > 1 else "")
        if name in self.g.nodes:
            return name
        self._level(source)
        box = self.static(source.domain)
        hold, early = (
            box.with_range(replace(box[extent.dim], hi=self.ending.most - k)) for k in (c - 1, c)
        )
        own = self._row_of(source, box.identity, extent.dim)
        was = self.g.read(source.name)
        node = Node(name, Merge(when=(TRUE,)), (was,), hold, self.g[source.name].type, self.n.loc)
        self.g.put(node)
        longer = self.before(extent.sym + c, own, early)
        later = Ref(name, hold.point(extent.dim, extent.sym + 1))
        op = choice(len(shape_of(source.type)))
        now = self.emit(op, (longer, later, was), f"{name}_now", early)
        when = (
            compare("==", extent.sym, hold[extent.dim].hi - 1),
            compare("<", extent.sym, hold[extent.dim].hi - 1),
        )
        self.g.put(replace(node, op=Merge(when=when), args=(was, now)))
        return name

    def any_before(self, expr: Expr | int, source: Node, dim: str, box: Domain) -> Ref:
        """Is e < T in the row of a source, or in any of those that it does not vary with?"""
        point = Ref(source.name, self.static(source.domain).identity)
        own = self._row_index(source, point, dim)
        rows = [
            x if symbols(x) <= set(box.dims) else Slice(r.lo, r.hi)  # pyright: ignore[reportArgumentType]
            for r, x in zip(self.static(self.rows), own, strict=True)
        ]
        axes = tuple(range(sum(isinstance(x, Slice) for x in rows)))
        here = self.before(expr, rows, box)
        return self.emit(Any_(axes=axes), (here,), "alive_any", box) if axes else here

    def _inside(self, ref: Ref) -> Ref:
        """The read where it falls into its source, elsewhere zeros: it is not used there."""
        source, box = self.g[ref.name], self.domain(self.n)
        where: list[Expr] = []
        for r, e in zip(source.domain, ref.index, strict=True):
            lo, hi = (e.lo, e.hi) if isinstance(e, Slice) else (e, e)
            end = "<=" if isinstance(e, Slice) else "<"
            where += [compare(">=", lo, r.lo), compare(end, hi, r.hi)]
        cond = both(*(c for c in where if not isl.always(c, box)))
        if cond == TRUE:
            return ref
        type_ = self.g.type(ref)
        zero = self.emit(Const(value=0, dtype=type_.dtype, shape=type_.shape), ())
        op = Merge(when=(cond, negate(cond)))
        return self.g.emit(op, (ref, zero), box, f"{ref.name}_or_0")

    # ---- masks

    def masked(self, operand: MaskedOperand, axis: int, fill: float) -> MaskedOperand:
        """`operand` with `fill` past the end of each row, along an axis."""
        along = self.along(operand, axis)
        source = None if operand.whole is None else self.graph[operand.whole.name]
        whole = operand.whole.index if operand.whole is not None else ()
        lead = [e for e in whole if isinstance(e, Slice)]
        dtype = self.g.type(operand.ref).dtype
        if source is not None and axis < len(lead):
            dims = [
                r
                for r, e in zip(source.domain, operand.ref.index, strict=True)
                if isinstance(e, Slice)
            ]
            ends, r = self._ends(along), dims[axis]
            if (
                fill == 0
                and ends == [0]
                and self.zeros.time(source)
                and self.zeros.mask(operand.ref.name)
            ):
                return operand
            y = self._alive_source(source, r, ends, fill)
            return replace(operand, ref=Ref(y.name, operand.ref.index), whole=None)
        axes = LETTERS[: len(operand.shape)]
        mask, letters = self.mask(operand, axis)
        other = self.emit(Const(value=fill, dtype=dtype), ())
        op = el.Where(labels=join_labels((letters, axes, ""), axes))
        return replace(
            operand, ref=self.emit(op, (mask, operand.ref, other), f"{operand.ref.name}_alive")
        )

    def mask(self, operand: MaskedOperand, axis: int) -> tuple[Ref, str]:
        """Build the mask of the elements of an axis that exist, and the labels of its axes."""
        along, masks, letters = self.along(operand, axis), list[Ref](), ""
        if along.dim == COUNTED:
            if along.rows != tuple(r.sym for r in self.rows):
                self.lost(operand)
            length = self.number(lin([(along.part.hi, 1), (along.part.lo, -1)]))
            place = self.places(operand.shape[axis])
            inside = self.emit(el.Less(labels="a,->a"), (place, length), "inside")
            return inside, LETTERS[axis]
        for c in self._ends(along):
            part: Any = along.part.at(self.by)
            moved = Slice(part.lo + c, part.hi + c, part.step)
            index, letters, gone = self._mask_index(operand, axis, along, moved)
            here = Ref(self.alive, index)
            masks.append(self.emit(Any_(axes=gone), (here,), "alive_any") if gone else here)
        return self.joined(el.And(), masks), letters

    def places(self, size: Expr | int) -> Ref:
        """The numbers of the elements of an axis."""
        k = unused_name(self.graph)
        op = Value(expr=Sym(k), dtype="i32", bind=((k, substitute(size, self.by), 0),))
        return self.emit(op, (), "place")

    def present(self, operand: MaskedOperand, fill: float) -> MaskedOperand:
        """`operand` with `fill` wherever its row has no point: beside it, and along its axes."""
        for axis, size in enumerate(operand.shape):
            operand = self.masked(operand, axis, fill) if self.ended(size) else operand
        if operand.ref.name not in self.graph.nodes:
            return operand
        y = self.ended_with(self.g[operand.ref.name], fill)
        return replace(operand, ref=Ref(y, operand.ref.index), whole=None)

    def ended_with(self, node: Node, fill: float) -> str:
        """An equation with `fill` wherever its row has no point."""
        box = node.domain
        times = [r for r in box if r.dim in self.timed]
        if not times:
            return node.name
        here = self.joined(el.And(), [self.any_before(r.sym, node, r.dim, box) for r in times], box)
        return self._where_alive(here, self.g.read(node.name), box, fill).name

    def _alive_source(self, source: Node, extent: Range, ends: Sequence[int], fill: float) -> Ref:
        """An equation with `fill` where its row has ended."""
        box = self.static(source.domain)
        alive = self._alive_at(source, extent.dim, ends, box)
        return self._where_alive(alive, self.g.read(source.name), box, fill)

    def _alive_at(self, source: Node, dim: str, ends: Sequence[int], box: Domain) -> Ref:
        """Are points of a source before all ends T - c? Of a sum of gradients over rows: in any."""
        rows = self._row_of(source, box.identity, dim)
        if (NOTHING, source.name) in self.zeros.holds:
            here = [self.any_before(Sym(dim) + c, source, dim, box) for c in ends]
        else:
            here = [self.before(Sym(dim) + c, rows, box) for c in ends]
        return self.joined(el.And(), here, box)

    def _where_alive(self, alive: Ref, ref: Ref, box: Domain, fill: float) -> Ref:
        type_ = self.g.type(ref)
        other = self.emit(Const(value=fill, dtype=type_.dtype), ())
        op = choice(type_.rank, both=False)
        return self.g.emit(op, (alive, ref, other), box, f"{ref.name}_alive")

    def _mask_index(
        self, operand: MaskedOperand, axis: int, along: Along, part: Slice
    ) -> tuple[tuple[Index, ...], str, tuple[int, ...]]:
        """The index of `alive` for the axes of an operand, their labels, and those without one."""
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
                letters += axes[self.lost(operand) if at is None else at]
        return tuple(index), letters, tuple(gone)

    def row_axis_of(self, operand: MaskedOperand, extent: Range, part: Slice) -> int | None:
        """The axis of an operand that runs along rows."""
        pairs = list(enumerate(zip(operand.axes, operand.shape, strict=True)))
        whole = part == Slice(extent.lo, extent.hi)
        found = [k for k, (a, _) in pairs if a == Along(extent.dim, part)]
        found += [k for k, (_, n) in pairs if whole and n == extent.hi]
        return found[0] if found else None

    def across(self, operand: MaskedOperand, axis: int) -> list[int | None]:
        """The axes along which the rows run that end along an axis; None where one is gone."""
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
        """The run of an axis of rows that end; raises where it was lost."""
        return operand.axes[axis] or self.lost(operand)

    def whole(self, shape: Sequence[Any], axes: Axes) -> Axes:
        """The axes, where one of size T - t or min(T, t+5) - t runs along the rows, as x[t:T] does.

        Gradients have such axes: they have them of the values that they are gradients of.
        """
        out, own = list(axes), self.domain(self.n)
        for axis, size in enumerate(shape):
            if axes[axis] is not None or not self.ended(size):
                continue
            ends = [x for x, k in terms(size) if k == 1 and self.ended(x)]
            hi: Expr | int = ends[0] if len(ends) == 1 else self.sym
            lo = lin([(hi, 1), (size, -1)])
            rows = [
                Slice(r.lo, r.hi) if r.hi in shape else r.sym if r.dim in own else None
                for r in self.rows
            ]
            if None not in rows:
                known = tuple(e for e in rows if e is not None)
                longer = self.ended(lo) or (isinstance(lo, int) and lo < 0)  # T+2, 2*T
                part = (COUNTED, Slice(0, size)) if longer else (self.time, Slice(lo, hi))
                out[axis] = Along(*part, known)
        return tuple(out)

    def lost(self, operand: MaskedOperand) -> NoReturn:
        self.refuse(
            f"{self.n.op.name} mixes the elements of rows that end at different points",
            f"it cannot be said which rows the axes {', '.join(map(str, operand.shape))} of "
            f"{operand.ref.name} run along",
            "reduce x[.., 0:T] itself, before it is reshaped or joined",
        )

    def ends_known(self, along: Along) -> list[int] | None:
        """c of every T - c that an axis ends at; None where it ends elsewhere, as at T - t."""
        hi = along.part.hi
        args = hi.args if isinstance(hi, Ext) and hi.op == "min" else (hi,)
        found = [self._before_end(e) for e in args if self.ended(e)]
        out = [c for c in found if c is not None and c >= 0]
        return out if len(out) == len(found) else None

    def _ends(self, along: Along) -> list[int]:
        """`ends_known`, or a refusal."""
        out = self.ends_known(along)
        if out is None:
            self.refuse(
                f"a range ends at {along.part.hi}",
                f"{self.bound} is set while the program runs; a range may end at {self.bound}, "
                f"{self.bound}-1 or rc.min(t+5, {self.bound})",
                "choose by rc.where",
            )
        return out
