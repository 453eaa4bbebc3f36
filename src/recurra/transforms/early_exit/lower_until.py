"""Replace a bound that the data set by its largest value, with masks where it matters.

    T = until(d, max=9)   →   alive[b<B,t<9] = merge(true, going[b,t-1], when=(t == 0, t >= 1))
    sum(x[b,t:T])         →   x_alive[b<B,t<9] = where(alive, x, 0);  sum(x_alive[b,t:9])
    x[b,T-1]              →   x_last[b,8], which keeps its value once the row has ended
    merge(.. t < T-1 ..)  →   where(alive[b,t+1], ..)
    B*T                   →   Σ over b of the lengths

A row is computed on past its end, but no value inside of a row, across rows or outside of the
program depends on that. In an index T is the length of the row that is read, in a value that of the
own row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from recurra.ir.expr import TRUE, Cmp, Expr, Logic, Sym, all_of, any_of, compare, lin, negate
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.op import LETTERS, Elementwise, Op, join_labels
from recurra.ir.order import components
from recurra.ir.types import Domain, Range, Tuple
from recurra.ops import elementwise as el
from recurra.ops.control import Call, Foreign, Merge
from recurra.ops.indexing import Pick, Place, Take
from recurra.ops.movement import Expand, Flip, Transpose
from recurra.ops.source import Value
from recurra.transforms.early_exit.masked_reads import MaskedOperand
from recurra.transforms.early_exit.ragged_axes import (
    Along,
    Axes,
    RowsDiffer,
    moved_axes,
    neutral_fills,
    reads_only_earlier,
    result_axes,
    safe_fills,
)
from recurra.transforms.early_exit.ragged_data_movement import RaggedMovement
from recurra.transforms.early_exit.row_lengths import Ending, choice
from recurra.transforms.early_exit.whole_row_reads import read_whole_rows
from recurra.transforms.rewriter.rewriting import shape_of


def end_rows(graph: Graph, bound: str, ending: Ending, keep: Sequence[str] = ()) -> Graph:
    """Return the graph with a number for `bound`, which `ending` set row by row.

    Dead equations are removed, except those to `keep`. Raises DomainError where a length is needed
    that differs from row to row.
    """
    return _Program(read_whole_rows(graph, bound), bound, ending).rewritten(keep)


@dataclass
class _Program(RaggedMovement):
    """The rewriting of all equations; `early` ones depend on no merge."""

    early: set[str] = field(default_factory=set[str])

    def rewritten(self, keep: Sequence[str]) -> Graph:
        """The graph with the number."""
        self.add_alive()
        for n in self._order():
            self.n, self.g.loc = n, n.loc
            self._rebuild(n)
        self.write_zeros()
        outputs = tuple(map(self._shown, self.graph.outputs))
        every = (*outputs, *(k for k in keep if k in self.g.nodes and k not in outputs))
        return replace(Graph(self.g.nodes, every, self.g.dims).live(), outputs=outputs)

    def _order(self) -> list[Node]:
        """The equations, operands first; recurrences are cut at merges, whose types are known.

        Those that depend on no merge are first of all: they may come to vary with rows, which their
        readers must know.
        """

        def before(name: str) -> list[str]:
            n = self.graph[name]
            return [] if isinstance(n.op, Merge) else [a.name for a in n.args]

        parts = components(self.graph.nodes, before)
        order = [self.graph[name] for part in parts for name in part]
        for n in order:
            if not isinstance(n.op, Merge) and all(a.name in self.early for a in n.args):
                self.early.add(n.name)
        return sorted(order, key=lambda n: n.name not in self.early)

    # ---- one equation

    def _rebuild(self, node: Node) -> None:
        for r in node.domain:
            if self.is_dynamic(r.lo):
                self.refuse(
                    f"{node.name} starts where a row ends: {r}",
                    f"{self.bound} is only known when the row has ended",
                    "let it start at a number, and choose by rc.where",
                )
        if isinstance(node.op, Value) and self.is_dynamic(node.op.expr):
            self._value(node, node.op)
        elif isinstance(node.op, Merge):
            self._merge(node, node.op)
        else:
            self._apply(node)

    def _apply(self, node: Node) -> None:
        """Rewrite an op on operands whose axes may end earlier in some rows."""
        node = self.n = self._fold_by_row(node)
        xs = [self.operand(node, k) for k in range(len(node.args))]
        op = node.op.at(self.by)
        if any(a.name in self.per_row for a in node.args):
            op = self._with_row_reads(node, op, xs)
        shapes = [x.shape for x in xs]
        if isinstance(node.op, Pick):
            self._pick(node, node.op, xs[0])
            return
        self._expect_rows_in_place(node, xs)
        self._mask_operands(node.op, xs)
        if isinstance(node.op, Call):
            op = self.with_alive(node, self.with_lengths(node.op, xs), xs)
        if not isinstance(node.type, Tuple):
            axes = self._result_axes(node, xs)
            if axes is None and any(self.is_dynamic(s) for x in xs for s in x.shape):
                self._refuse_rows(node, xs)
            rank = len(shape_of(node.type))
            self.axes[node.name] = axes if axes and len(axes) == rank else (None,) * rank
            if (moved := self.moved_by_data(node, xs)) is not None:
                self.put(node, *moved)
                return
        if isinstance(op, Flip) and self.is_dynamic(shapes[0][op.axis]):
            op, at = self.reversed(xs[0], op.axis)
            self.put(node, op, [xs[0].ref, at])
            return
        if isinstance(node.op, Place) and self.is_dynamic(node.op.at_):
            self._place(node, node.op, xs[0])
            return
        refs = [x.ref for x in xs]
        if isinstance(op, Take) and self.is_dynamic(shapes[0][op.parts()[0].index(op.axis)]):
            op, refs[1] = self.take_inside(op, xs[0], refs[1])
        self.put(node, op, refs)

    def _result_axes(self, node: Node, xs: Sequence[MaskedOperand]) -> Axes | None:
        """The runs of the result's axes; refuses an axis that ends at several points."""
        try:
            return result_axes(node.op, [x.shape for x in xs], [x.axes for x in xs])
        except RowsDiffer:
            self.refuse(
                f"{node.op.name} takes rows that end at different points",
                f"it reads {self.ragged_reads(node, xs)}, and {self.bound} is the length of the "
                "row that is read",
                "reduce the rows first, or read one point of each",
            )

    def _expect_rows_in_place(self, node: Node, xs: Sequence[MaskedOperand]) -> None:
        """Refuse to move elements from row to row: one may have ended where another has not."""
        for k, axis in moved_axes(node.op, len(xs)):
            for j, size in enumerate(xs[k].shape):
                if j != axis and self.is_dynamic(size) and axis in self.row_axes(xs[k], j):
                    self.refuse(
                        f"{node.op.name} along axis {axis} moves elements from row to row",
                        f"{node.args[k]} has a row at each of its {xs[k].shape[axis]} places, and "
                        f"{self.bound} is set row by row",
                        f"work on one row, x[.., 0:{self.bound}], at each point, or reduce each "
                        f"row first",
                        k,
                    )

    def _refuse_rows(self, node: Node, xs: Sequence[MaskedOperand]) -> NoReturn:
        op, hint = node.op.name, "reduce the rows first, or work on one point of them"
        if isinstance(node.op, Foreign):
            op = node.op.fn.key
            hint = f"take it as equations, rc.import_jax({op})"
            if not any(map(self.is_dynamic, shape_of(node.type))):
                hint += f", or let the host call it for one row, rc.call({op}, rc.{node.type}, ..)"
        read = next(k for k, x in enumerate(xs) if self.is_ragged(x))
        self.refuse(
            f"{op} takes rows that end at different points",
            f"it reads {node.args[read]}, whose axes are {', '.join(map(str, xs[read].shape))}",
            hint,
            read,
        )

    def _mask_operands(self, op: Op, xs: list[MaskedOperand]) -> None:
        """Set elements past the end to values that are neutral for the op, or valid for it."""
        for k, value in safe_fills(op, [self.g.type(x.ref).dtype for x in xs]):
            xs[k] = self.masked_rows(xs[k], value)
        dtype = self.g.type(xs[0].ref).dtype if xs else "f32"
        for k, axis, fill in neutral_fills(op, dtype):
            for j, size in enumerate(xs[k].shape):
                own = j == axis and not reads_only_earlier(op)
                if self.is_dynamic(size) and (own or axis in self.row_axes(xs[k], j)):
                    xs[k] = self.masked(xs[k], j, fill)

    def put(self, node: Node, op: Op, args: Sequence[Ref]) -> None:
        """Replace the op and the operands of an equation."""
        old = self.g[node.name]
        self.g.put(replace(old, op=op, args=tuple(args), domain=self.domain(node), locs=node.locs))

    def _pick(self, node: Node, op: Pick, operand: MaskedOperand) -> None:
        """Rewrite the pick of an element, which is zero past the end of a row."""
        along = operand.axes[op.axis]
        own = along is None or not along.rows or along.rows == self.own_row
        if self.is_dynamic(op.at_) and not own:
            self.refuse(
                f"{node.name} picks element {op.at_} of an axis",
                f"{self.bound} differs from row to row, and the axis is that of several rows, or "
                f"of another",
                f"read the end of a row as x[.., {self.bound}-1]",
            )
        size = operand.shape[op.axis]
        self.axes[node.name] = self._axes_at(operand, op)
        inside = TRUE
        if op.zero:
            ends = compare(">=", op.at_, 0) if self.is_dynamic(op.at_) else TRUE
            inside = self.simplified(all_of(ends, compare("<", op.at_, size)))
        pick, args = op.at(self.by), [operand.ref]
        if self.is_dynamic(op.at_):
            axes = LETTERS[: len(operand.shape)]
            axis = axes[op.axis]
            pick = Take(labels=f"{axes},->{axes.replace(axis, '')}", axis=axis)
            args.append(self.number(op.at_))
        if not self.is_dynamic(inside):
            self.put(node, pick, args)
            return
        on = self.condition(inside)
        y = self.emit(pick, tuple(args), "picked")
        zero = self.const(0, self.g[node.name].type.dtype)
        self.put(node, choice(node.tensor.rank, both=False), (on, y, zero))

    def _place(self, node: Node, op: Place, operand: MaskedOperand) -> None:
        """Rewrite an op that puts a value at a position, set by data, of an axis of zeros."""
        at, positions = self.number(op.at_), self.positions(op.size)
        here = self.emit(el.Equal(labels=",a->a"), (at, positions), "here")
        axes = LETTERS[: len(operand.shape) + 1]
        c = axes[op.axis]
        zero = self.const(0, self.g.type(operand.ref).dtype)
        where = el.Where(labels=join_labels((c, axes.replace(c, ""), ""), axes))
        self.put(node, where, [here, operand.ref, zero])

    def _axes_at(self, operand: MaskedOperand, op: Pick) -> Axes:
        """The runs of the axes that are left; axes of all rows become axes of the picked row."""
        out = list[Along | None]()
        for a in (a for k, a in enumerate(operand.axes) if k != op.axis):
            if a is not None and a.rows and not self.is_dynamic(op.at_):
                pairs = zip(self.rows, a.rows, strict=True)
                rows = (
                    lin([(e.lo, 1), (op.at_, e.step)])
                    if isinstance(e, Slice) and self.row_axis_of(operand, r, e) == op.axis
                    else e
                    for r, e in pairs
                )
                a = replace(a, rows=tuple(rows))
            out.append(a)
        return tuple(out)

    # ---- choices and numbers

    def _merge(self, node: Node, op: Merge) -> None:
        """Rewrite a merge: branches by T are chosen by data, the others as before."""
        if any(map(self.is_dynamic, op.when)) and all(map(self._is_number, node.args)):
            node = self.n = self._vary_with_rows(node, self.rows.dims)
        op = Merge(when=tuple(map(self.simplified, op.when)))
        fixed = [k for k, c in enumerate(op.when) if not self.is_dynamic(c)]
        ended = [k for k, c in enumerate(op.when) if self.is_dynamic(c)]
        xs = [self._branch_of_row(node, a, self.operand(node, k)) for k, a in enumerate(node.args)]
        if self.is_alive_mask(node) and self.time in node.domain:
            here = self.is_before_end(Sym(self.time), self.own_row)
            for k, a in enumerate(node.args):
                if not isinstance(self.graph[a.name].op, el.Going):
                    xs[k] = replace(xs[k], ref=self.emit(el.And(), (here, xs[k].ref), "begins"))
        self.axes[node.name] = self._result_axes(node, xs) or ()
        if not ended:
            self.put(node, op, [x.ref for x in xs])
            return
        refs = {k: self._zero_outside(xs[k].ref) for k in ended}
        kept = (*fixed, ended[-1])  # those by T become one
        node = replace(node, locs=tuple(node.locs[k] for k in kept) if node.locs else ())
        value = refs[ended[-1]]
        where = choice(len(shape_of(node.type)))
        for k in reversed(ended[:-1]):
            args = (self.condition(op.when[k]), refs[k], value)
            value = self.emit(where, args, f"{node.name}_chosen")
        when = tuple(op.when[k] for k in fixed)
        rest = negate(any_of(*when)) if fixed else TRUE
        self.put(node, Merge(when=(*when, rest)), [*(xs[k].ref for k in fixed), value])

    def _branch_of_row(self, node: Node, ref: Ref, operand: MaskedOperand) -> MaskedOperand:
        """The operand of a branch; if it came to vary with rows, it is of the point's row."""
        if ref.name not in self.per_row:
            return operand
        domain, read = self.per_row[ref.name], self.graph[ref.name].domain.dims
        missing = [d for d in domain.dims if d not in read and d not in node.domain]
        if missing:
            self._refuse_without_rows(", ".join(missing))
        own: dict[str, Index] = {r.dim: r.sym for r in domain}
        index = own | dict(zip(read, operand.ref.index, strict=True))
        return replace(operand, ref=Ref(ref.name, tuple(index[d] for d in domain.dims)), read=None)

    def _value(self, node: Node, op: Value) -> None:
        """Rewrite a number made of T: of its row, or summed over the rows that multiply it."""
        self.n = self._vary_with_rows(node, self._row_dims(op.expr))
        if isinstance(op.expr, (Cmp, Logic)):
            ref = self.condition(self.simplified(op.expr))
        else:
            ref = self.number(op.expr)
        self.put(self.n, el.Cast(to=op.dtype), [ref])

    def _vary_with_rows(self, node: Node, dims: Iterable[str]) -> Node:
        """Add dims to the domain of an equation."""
        every = {*node.domain.dims, *dims}
        if every == {*node.domain.dims}:
            return node
        order = list(self.graph.declared)
        box = Domain(tuple(self.ranges[d] for d in sorted(every, key=order.index)))
        self.per_row[node.name] = box
        return replace(node, domain=box)

    def _fold_by_row(self, node: Node) -> Node:
        """Let an equation vary with rows if it reduces plain numbers along T elements of a row."""
        sizes = [shape_of(self.graph.read_type(a)) for a in node.args]
        folds = neutral_fills(node.op, "f32") if not reads_only_earlier(node.op) else []
        alone = any(self.is_dynamic(sizes[k][axis]) for k, axis, _ in folds)
        if alone and all(map(self._is_number, node.args)):
            return self._vary_with_rows(node, self.rows.dims)
        return node

    def _with_row_reads(self, node: Node, op: Op, xs: list[MaskedOperand]) -> Op:
        """Rewrite reads of what came to vary with rows, to the own row or to an axis of rows.

        Returns the op with labels for the axes that operands have gained.
        """
        sides = _sides(node, op, xs)
        ins, more = ["" if s is None else s.labels for s in sides], set[str]()
        for k, a in enumerate(node.args):
            if a.name not in self.per_row:
                continue
            index = dict(zip(self.graph[a.name].domain.dims, xs[k].ref.index, strict=True))
            lead = ""
            for r in (r for r in self.per_row[a.name] if r.dim not in index):
                letter = "" if r.dim in node.domain else self._row_axis(r, sides)
                if letter and letter in ins[k]:
                    self._refuse_without_rows(r.dim)
                index[r.dim] = Slice(r.lo, r.hi) if letter else r.sym
                lead += letter
                more |= set() if letter else {r.dim}
            ref = Ref(a.name, tuple(index[r.dim] for r in self.per_row[a.name]))
            xs[k], ins[k] = replace(xs[k], ref=ref, read=None), lead + ins[k]
        if more := more - set(node.domain.dims):
            if not all(self._is_number(a) for a in node.args):
                self._refuse_without_rows(", ".join(sorted(more)))
            self._vary_with_rows(node, more)
        return _relabeled(op, tuple(len(x.shape) for x in xs), ins[: len(xs)])

    def _is_number(self, ref: Ref) -> bool:
        """Tell whether a read is of a plain number, which may come to vary with rows."""
        n = self.graph[ref.name]
        if ref.name in self.per_row:
            return True
        known = n.name in self.early and n.op.pure and not set(n.domain.dims) & {*self.rows.dims}
        return known and all(map(self._is_number, n.args))

    def _row_axis(self, extent: Range, sides: Sequence[Side | None]) -> str:
        """The label of an axis that runs along all rows."""
        whole = Along(extent.dim, Slice(extent.lo, extent.hi))
        for s in sides:
            for c, a, n in () if s is None else zip(s.labels, s.axes, s.shape, strict=True):
                if a == whole or (a is None and n == extent.hi):
                    return c
        return ""

    # ---- outputs

    def write_zeros(self) -> None:
        """Mask the equations that are to be zero past the end of their rows."""
        for name in [n for n in self.graph.nodes if n in self.zeros.masked]:
            n, raw = self.g[name], self.g.fresh(f"{name}_any")
            self.n, self.g.loc = self.graph[name], n.loc
            box = n.domain
            alive = self._is_alive(self.graph[name], self.zeros.time(n), [0], box)
            zero = self.const(0, n.tensor.dtype, within=box)
            self.g.put(replace(n, name=raw))
            op = choice(n.tensor.rank, both=False)
            self.g.put(replace(n, op=op, args=(alive, self.g.read(raw), zero), locs=()))

    def _shown(self, name: str) -> str:
        """The name of an output that is zero past the end of each row."""
        n = self.graph[name]
        self.n, self.g.loc = n, n.loc
        if isinstance(n.type, Tuple):
            return name
        shape = n.type.shape
        axes = self.with_row_axes(shape, self.axes[name] or (None,) * len(shape))
        x = MaskedOperand(self.g.read(name), shape, axes)
        for axis, (along, size) in enumerate(zip(axes, shape, strict=True)):
            ragged = along is not None and self.is_dynamic(size)
            if ragged and None not in self.row_axes(x, axis):
                x = self.masked(x, axis, 0)
        return self.masked_equation(self.g[x.ref.name], 0)


@dataclass(frozen=True)
class Side:
    """An operand, or the result, of an op with labels: its axes by label."""

    labels: str
    axes: Axes
    shape: tuple[Expr | int, ...]


def _sides(node: Node, op: Op, xs: Sequence[MaskedOperand]) -> list[Side | None]:
    """The operands of an op with labels; of an expand, the result, too."""
    shape = shape_of(node.type)
    if isinstance(op, Expand):
        source, out = op.labels.split("->")
        return [Side(source, xs[0].axes, xs[0].shape), Side(out, (None,) * len(out), shape)]
    if not isinstance(op, Elementwise):
        return [None for _ in xs]
    ins, _ = op.parts(tuple(len(x.shape) for x in xs))
    return [Side(s, x.axes, x.shape) for s, x in zip(ins, xs, strict=True)]


def _relabeled(op: Op, ranks: tuple[int, ...], ins: Sequence[str]) -> Op:
    """The op with labels for the axes that its operands have gained."""
    if isinstance(op, Elementwise):
        _, out = op.parts(ranks)
        return replace(op, labels=join_labels(tuple(ins), out))
    if not isinstance(op, Expand):
        return op
    source, out = op.labels.split("->")
    new = zip([c for c in out if c not in source], op.sizes, strict=True)
    sizes = tuple(n for c, n in new if c not in ins[0])
    if not sizes:
        return Transpose(order=tuple(map(ins[0].index, out)))
    return replace(op, labels=f"{ins[0]}->{out}", sizes=sizes)
