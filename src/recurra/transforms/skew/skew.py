"""Loop skewing: compute cells that depend on neighbors along two dims diagonal by diagonal.

    d[i<I,j<J] = merge(c, y, when=(i == 0 or j == 0, ..))     y = f(d[i-1,j], d[i,j-1], e[i,j])
 →  d_wave[w<I+J]: [I] = merge(0, z, when=(w == 0, w >= 1))   z = where(.., f(later(d_wave[w-1]), ..
    d[i<I,j<J] = pick(d_wave[i+j+1], at_=i)

All cells of a diagonal i + j = w are an axis (Lamport, 1974: the hyperplane method): I + J steps
instead of I · J. It is done if that is cheaper: many rows fill a step as well. Points of a diagonal
outside of the table are computed and not read; the state is 0 there. Reductions of all cells, such
as their maximum, reduce diagonals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recurra.ir.dims import Role
from recurra.ir.expr import (
    TRUE,
    Expr,
    Sym,
    all_of,
    compare,
    evaluate,
    lin,
    maximum,
    minimum,
    negate,
    substitute,
    symbols,
)
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols, merge_condition
from recurra.ir.op import LETTERS, Op, Reduction, join_labels
from recurra.ir.order import components
from recurra.ir.types import Domain, Range, Type
from recurra.ops import elementwise as el
from recurra.ops.control import Merge
from recurra.ops.indexing import Pick, Take
from recurra.ops.movement import Cut, Expand, Flip, Pad, Reshape, Transpose
from recurra.ops.random import Uniform
from recurra.ops.reduction import identity
from recurra.ops.source import Const, Value
from recurra.polyhedral.dependence import always_inside, is_feasible
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.skew.analysis import Front, costs, fronts, length_of, shifts_of


@dataclass
class _Skew:
    """A front on its diagonals: the cell (a, o) is on step a - lo + o - lo + before."""

    graph: Graph
    f: Front
    sizes: Mapping[str, int]
    waves: dict[str, str] = field(default_factory=dict[str, str])  # cell -> its diagonals

    def __post_init__(self) -> None:
        f, dims = self.f, self.graph.dims
        self.pair = {f.axis.dim, f.other.dim}
        steps = f.length + length_of(f.other) - 1
        self.steps = steps + f.far
        stem = f.axis.dim + f.other.dim
        waves = self.graph.fresh_dim(
            Role.WAVES, f.axis.dim, self.steps, stem=stem, taken=self.sizes
        )
        self.wave = waves.range.sym
        self.inside = Range(waves.name, f.before + steps, f.before)
        last = max(k for k, d in enumerate(dims) if d.name in self.pair)
        every = (*dims[: last + 1], waves, *dims[last + 1 :])
        self.g = Rewriting.of(self.graph, self.sizes, every)
        self.late = [  # equations that are read on other diagonals
            name
            for name in f.cells
            if any(self.shifts(r.args[k]) != (0, 0) for r, k in self.reads(name))
        ]
        # element k of diagonal w is the cell (k + lo, w - before - k + lo)
        k = Sym(f.axis.dim)
        at: Expr | int = self.wave - f.before - k + f.other.lo
        self.cell: dict[str, Expr | int] = {f.axis.dim: k + f.axis.lo, f.other.dim: at}
        self.valid = all_of(compare(">=", at, f.other.lo), compare("<", at, f.other.hi))

    def reads(self, name: str) -> list[tuple[Node, int]]:
        """The reads of an equation by the front, in branches that are ever taken."""
        return [
            (n, k)
            for n, k in self.graph.readers[name]
            if n.name in self.f.members and is_feasible(n.domain, merge_condition(n, k))
        ]

    def shifts(self, ref: Ref) -> tuple[int, int] | None:
        return shifts_of(self.graph, ref, self.f.axis.dim, self.f.other.dim)

    def rewritten(self) -> Graph:
        """The graph with the table on diagonals."""
        f = self.f
        members = f.members
        for name in self.late:  # types first: reads are typed by their sources
            n = self.graph[name]
            domain = self.domain(n, Range(self.wave.name, self.steps))
            self.waves[name] = self.g.fresh(f"{name}_wave")
            self.g.put(Node(self.waves[name], Merge(when=()), (), domain, self.type(n), n.loc))
        for part in components(self.graph.in_order(members), self.needed):
            (name,) = part
            self.g.loc = self.graph[name].loc
            wave = self.on_diagonal(self.graph[name])
            if name in self.late:
                self.store(self.waves[name], wave)
            else:
                self.waves[name] = wave.name
        for n in list(self.g.nodes.values()):
            if n.name in self.graph.nodes and n.name not in members:
                self.reread(n)
        for name in f.cells:
            self.table(self.graph[name])
        return Graph(self.g.nodes, self.graph.outputs, self.g.dims).live()

    def needed(self, name: str) -> list[str]:
        """The equations of the front that are read at the same cell."""
        own = [a for a in self.graph[name].args if a.name in self.f.members]
        return [a.name for a in own if self.shifts(a) == (0, 0)]

    def domain(self, node: Node, steps: Range) -> Domain:
        """The domain of an equation with steps instead of the two dims."""
        ranges = [*(r for r in node.domain if r.dim not in self.pair), steps]
        order = [d.name for d in self.g.dims]
        return Domain(tuple(sorted(ranges, key=lambda r: order.index(r.dim))))

    def type(self, node: Node) -> Type:
        return Type(node.tensor.dtype, (self.f.length, *node.tensor.shape))

    def store(self, name: str, value: Ref) -> None:
        """Make an equation a state that later diagonals read, zero before the first."""
        n = self.g[name]
        zero = self.zeros(n.tensor, n.domain)
        inside = (compare(">=", self.wave, self.inside.lo), compare("<", self.wave, self.inside.hi))
        on = inside[0] if self.f.sign > 0 else inside[1]
        self.g.put(replace(n, op=Merge(when=(negate(on), on)), args=(zero, value)))

    # ---- one equation

    def emit(self, op: Op, args: Sequence[Ref], within: Domain, stem: str) -> Ref:
        """Add an equation over all of a domain."""
        return self.g.emit(op, args, within, stem, whole=True)

    def on_diagonal(self, node: Node) -> Ref:
        """Emit an equation on a diagonal: [cells, *shape]."""
        within, op = self.domain(node, self.inside), node.op
        if isinstance(op, Merge):
            return self.merge(node, op, within)
        if isinstance(op, (Value, Uniform)):
            if op.mentions() & self.pair:
                new = op.at(self.cell).batch_symbol(self.f.axis.dim, self.f.length, False)
                return self.emit(new, (), within, node.name)
            return self.wide(self.g.emit(op, (), within, node.name), within)
        pairs = [self.operand(a, within) for a in node.args]
        ranks = tuple(len(self.graph.read_type(a).shape) for a in node.args)
        args, flags = [a for a, _ in pairs], tuple(x for _, x in pairs)
        if not any(flags):
            return self.wide(self.g.emit(op, args, within, node.name), within)
        if isinstance(op, Reshape):
            new = op.batch_size(self.f.length, False)
            return self.emit(new, args, within, node.name)
        new = op.batch(flags, ranks, False)
        if new is None:
            args = [a if x else self.wide(a, within) for a, x in pairs]
            new = op.batch((True,) * len(args), ranks, False)
        assert new is not None, f"{op.name} has no batch rule"
        return self.emit(new, args, within, node.name)

    def merge(self, node: Node, op: Merge, within: Domain) -> Ref:
        """Emit a merge on a diagonal: selects by cell, and zero where there is no cell."""
        live = [
            k for k in range(len(node.args)) if is_feasible(node.domain, merge_condition(node, k))
        ]
        pairs = [self.operand(node.args[k], within) for k in live]
        wide = [a if x else self.wide(a, within) for a, x in pairs]
        when = tuple(op.when[k] for k in live)
        if not any(symbols(c) & self.pair for c in when):
            wide, when = [self.emit(Merge(when=when), wide, within, node.name)], (TRUE,)
        axes = LETTERS[: node.tensor.rank]

        def select(cell: Expr | int, one: Ref, other: Ref, labels: str) -> Ref:
            mask = Value(expr=substitute(cell, self.cell), dtype="bool")
            mask = mask.batch_symbol(self.f.axis.dim, self.f.length, False)
            on = self.g.emit(mask, (), within, "on")
            where = el.Where(labels=join_labels(("Z", f"Z{axes}", labels), f"Z{axes}"))
            return self.emit(where, (on, one, other), within, node.name)

        value = wide[-1]  # one of the branches is taken wherever there is a cell
        for c, x in zip(reversed(when[:-1]), reversed(wide[:-1]), strict=True):
            value = select(c, x, value, f"Z{axes}")
        zero = self.g.emit(Const(value=0, dtype=node.tensor.dtype), (), within, "zero")
        return select(self.valid, value, zero, "")

    def wide(self, ref: Ref, within: Domain) -> Ref:
        """Emit the same value for all cells of a diagonal."""
        axes = LETTERS[: self.g.type(ref).rank]
        op = Expand(labels=f"{axes}->Z{axes}", sizes=(self.f.length,))
        return self.g.emit(op, (ref,), within, "wide")

    # ---- reads

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last diagonal."""
        return evaluate(self.inside.lo, self.sizes), evaluate(self.inside.hi, self.sizes) - 1

    def operand(self, ref: Ref, within: Domain) -> tuple[Ref, bool]:
        """The operand of a cell, and whether it differs from cell to cell."""
        if ref.name in self.f.members:
            shifts = self.shifts(ref)
            assert shifts is not None, "a cell reads its neighbors by shifts"
            return self.neighbor(ref, *shifts, within), True
        if not any(index_symbols(e) & self.pair for e in ref.index):
            return ref, False
        return self.diagonal(ref, within) or self.taken(ref, within), True

    def diagonal(self, ref: Ref, within: Domain) -> Ref | None:
        """A diagonal of another table, if every cell picks its own element of it."""
        source = self.graph[ref.name]
        if not isinstance(source.op, Pick) or source.op.axis or ref.slices:
            return None
        by: dict[str, Any] = dict(zip(source.domain.dims, ref.index, strict=True))
        (x,), at = source.args, substitute(source.op.at_, by)
        x = x.at(by).at(self.cell)
        table = self.graph[x.name]
        own = substitute(at, self.cell) == self.f.axis.sym
        if x.slices or not own or table.tensor.shape[0] != self.f.length:
            return None
        if any(index_symbols(e) & self.pair for e in x.index):
            return None
        return x if always_inside(x.index, table.domain, within) else None

    def zeros(self, t: Any, within: Domain) -> Ref:
        """Emit zeros, for values that no cell reads."""
        return self.g.emit(Const(value=0, dtype=t.dtype, shape=t.shape), (), within, "zero")

    def neighbor(self, read: Ref, along: int, across: int, within: Domain) -> Ref:
        """Emit another diagonal, shifted by some cells; zeros come in."""
        source = self.g[self.waves[read.name]]
        ref = Ref(source.name, source.domain.point(self.wave.name, self.wave + (along + across)))
        if not along:
            return ref
        if abs(along) >= self.f.axis.size(self.sizes):
            return self.zeros(source.type, within)
        left: Any = self.f.length - abs(along)
        cut = Cut(axis=0, start=max(along, 0), size=left)
        pad = Pad(axis=0, before=max(-along, 0), after=max(along, 0))
        return self.emit(pad, (self.emit(cut, (ref,), within, "cut"),), within, "moved")

    def taken(self, ref: Ref, within: Domain) -> Ref:
        """Take an element for each cell by number; past the table's end any will do."""
        source = self.graph[ref.name]
        index, at, total = list(ref.index), lin([]), 1
        shape = source.tensor.shape
        lengths: list[Any] = []
        for k, (e, r) in enumerate(zip(ref.index, source.domain, strict=True)):
            if index_symbols(e) & self.pair:
                assert not isinstance(e, Slice), "a cell reads points"
                size: Any = length_of(r)
                place: Any = lin([(substitute(e, self.cell), 1), (r.lo, -1)])
                place = maximum(minimum(place, lin([(size, 1), (1, -1)])), 0)
                at = place if not lengths else at * size + place
                index[k] = Slice(r.lo, r.hi)
                lengths.append(size)
                total = size if len(lengths) == 1 else total * size
        x = Ref(ref.name, tuple(index))
        if not all(evaluate(n, self.sizes) > 0 for n in lengths):
            return self.zeros(self.type(source), within)
        shifted = self.shifted(ref, x, within)
        if shifted is not None:
            return shifted
        if len(lengths) > 1:
            x = self.g.emit(Reshape(shape=(total, *shape)), (x,), within, f"{ref.name}_flat")
        i = Value(expr=at).batch_symbol(self.f.axis.dim, self.f.length, False)
        positions = self.g.emit(i, (), within, "cells")
        rest = LETTERS[: len(shape)]
        op = Take(labels=f"Y{rest},Z->Z{rest}", axis="Y")
        return self.g.emit(op, (x, positions), within, f"{ref.name}_cells")

    def shifted(self, ref: Ref, every: Ref, within: Domain) -> Ref | None:
        """Read at a fixed distance from each cell, along one dim or both; None if it varies."""
        f, axes = self.f, dict[str, tuple[int, Range, Any]]()
        for e, r in zip(ref.index, self.graph[ref.name].domain, strict=True):
            if isinstance(e, Slice):
                continue
            for d in (f.axis, f.other):
                c = lin([(e, 1), (d.sym, -1)])
                if not symbols(c) - set(self.sizes):
                    axes[d.dim] = len(axes), r, c
        if len(axes) < len(every.slices) or not every.slices:
            return None
        if f.other.dim not in axes:
            return self.along_axis(every, *axes[f.axis.dim][1:], within)
        if f.axis.dim not in axes:
            return self.along_other(every, *axes[f.other.dim][1:], within)
        return self.table_diagonal(every, axes, within)

    def along_axis(self, ref: Ref, extent: Range, shift: Any, within: Domain) -> Ref:
        """Cut the points along the axis to one per cell; zeros where there is none."""
        f = self.f
        before = lin([(extent.lo, 1), (shift, -1), (f.axis.lo, -1)])
        after = lin([(f.length, 1), (before, -1), (length_of(extent), -1)])
        first, last = (min(evaluate(n, self.sizes), 0) for n in (before, after))
        if first < 0 or last < 0:
            size = extent.size(self.sizes) + first + last
            if size <= 0:
                type_ = self.g.type(ref)
                return self.zeros(replace(type_, shape=(f.length, *type_.shape[1:])), within)
            ref = self.g.emit(Cut(axis=0, start=-first, size=size), (ref,), within, "cells")
        more = (0 if first < 0 else before, 0 if last < 0 else after)
        if more == (0, 0):
            return ref
        return self.g.emit(Pad(axis=0, before=more[0], after=more[1]), (ref,), within, "cells")

    def table_diagonal(
        self, every: Ref, axes: Mapping[str, tuple[int, Range, Any]], within: Domain
    ) -> Ref:
        """Read a diagonal of a table, as a column of rows that each start one element later."""
        (k, r, c), (_, columns, past) = (axes[d.dim] for d in (self.f.axis, self.f.other))
        x, rest = every, self.graph.read_type(every).shape[2:]
        turn = Transpose(order=(1, 0, *range(2, 2 + len(rest))))
        if k:
            x = self.g.emit(turn, (x,), within, "turned")
        height, width = length_of(r), length_of(columns)
        long: Any = lin([(height, 1), (width, 1), (1, -1)])
        x = self.g.emit(Pad(axis=1, before=0, after=height), (x,), within, "wide")
        x = self.g.emit(Reshape(shape=((long + 1) * height, *rest)), (x,), within, "flat")
        x = self.g.emit(Cut(axis=0, start=0, size=long * height), (x,), within, "flat")
        x = self.g.emit(Reshape(shape=(height, long, *rest)), (x,), within, "tilted")
        x = self.g.emit(turn, (x,), within, "tilted")
        first = substitute(self.cell[self.f.other.dim], {self.f.axis.dim: 0})
        at = lin([(first, 1), (past, 1), (columns.lo, -1), (self.f.axis.lo, 1), (c, 1), (r.lo, -1)])
        at = maximum(minimum(at, long - 1), 0)
        x = self.g.emit(Pick(axis=0, at_=at), (x,), within, "diagonal")
        return self.along_axis(x, r, c, within)

    def along_other(self, every: Ref, extent: Range, shift: Any, within: Domain) -> Ref:
        """Read a value of the other dim alone: reversed, it slides along the diagonals."""
        f = self.f
        # element k is the point w - before - k + lo + shift, from the end the r.hi - 1 - that
        first: Expr | int = substitute(self.cell[f.other.dim], {f.axis.dim: 0}) + shift
        start = lin([(extent.hi, 1), (-1, 1), (first, -1)])
        ends = [evaluate(start, {**self.sizes, self.wave.name: w}) for w in self.span]
        room = max(0, -min(ends))
        more = max(0, max(ends) + f.axis.size(self.sizes) - extent.size(self.sizes))
        back = self.g.emit(Flip(axis=0), (every,), within, "turned")
        back = self.g.emit(Pad(axis=0, before=room, after=more), (back,), within, "around")
        cut = Cut(axis=0, start=start + room, size=f.length)
        return self.g.emit(cut, (back,), within, "cells")

    # ---- readers of the table

    def picked(self, read: Ref, within: Domain, name: str = "") -> Ref:
        """Pick a cell from its diagonal."""
        f, source = self.f, self.graph[read.name]
        by: dict[str, Any] = dict(zip(source.domain.dims, read.index, strict=True))
        along: Any = lin([(by[f.axis.dim], 1), (f.axis.lo, -1)])
        step: Any = lin([(along, 1), (by[f.other.dim], 1), (f.other.lo, -1), (f.before, 1)])
        wave = self.g[self.waves[read.name]]
        ref = Ref(
            wave.name, tuple(step if d == self.wave.name else by[d] for d in wave.domain.dims)
        )
        pick = Pick(axis=sum(isinstance(e, Slice) for e in ref.index), at_=along)
        if not name:
            return self.g.emit(pick, (ref,), within, f"{read.name}_cell")
        self.g.put(Node(name, pick, (ref,), within, source.type, source.loc))
        return self.g.read(name)

    def reread(self, node: Node) -> None:
        """Let a reader of single cells pick them from their diagonals; others read the table.

        Readers of a border recompute equations that are not on the cycle.
        """
        args = list(node.args)
        for k, a in enumerate(args):
            if a.name not in self.f.members:
                continue
            self.g.loc = node.loc
            if a.slices:
                args[k] = self.reduced(node, a) or a
                continue
            if not always_inside(a.index, self.graph[a.name].domain, node.domain, self.sizes):
                continue
            if a.name in self.f.cells:
                args[k] = self.picked(a, node.domain)
            elif len(self.border(a)) < 2:
                args[k] = self.recomputed(a, node.domain)
        if tuple(args) != node.args:
            self.g.put(replace(node, args=tuple(args)))

    def reduced(self, node: Node, ref: Ref) -> Ref | None:
        """Read all cells of a table, diagonal by diagonal, for a reduction of them."""
        of = self.graph[ref.name]
        by = dict(zip(of.domain.dims, ref.index, strict=True))
        whole = all(by[r.dim] == Slice(r.lo, r.hi) for r in of.domain if r.dim in self.pair)
        if not isinstance(node.op, Reduction) or node.op.monoid is None:
            return None
        reduces = {0, 1} <= set(node.op.axes)
        if not whole or not reduces or len(ref.slices) > 2 or ref.name not in self.f.cells:
            return None
        wave, within = self.g[self.waves[ref.name]], self.domain(of, self.inside)
        ends = [(self.cell[r.dim], r) for r in of.domain if r.dim in self.pair]
        inside = all_of(*(all_of(compare(">=", e, r.lo), compare("<", e, r.hi)) for e, r in ends))
        mask = Value(expr=inside, dtype="bool").batch_symbol(self.f.axis.dim, self.f.length, False)
        neutral = Const(value=identity(node.op.monoid, of.tensor.dtype), dtype=of.tensor.dtype)
        axes = f"Z{LETTERS[: of.tensor.rank]}"
        on, off = (self.g.emit(x, (), within, "on") for x in (mask, neutral))
        args = (on, Ref(wave.name, within.identity), off)
        op = el.Where(labels=f"Z,{axes},->{axes}")
        cells = self.emit(op, args, within, f"{ref.name}_cells")
        steps = Slice(self.inside.lo, self.inside.hi)
        return Ref(cells.name, tuple(by.get(d, steps) for d in within.dims))

    def border(self, ref: Ref) -> set[str]:
        """The dims along which a reader walks through a table."""
        by = dict(zip(self.graph[ref.name].domain.dims, ref.index, strict=True))
        ends = (by[self.f.axis.dim], by[self.f.other.dim])
        return {d.name for d in self.g.dims} & set().union(*map(index_symbols, ends))

    def recomputed(self, ref: Ref, within: Domain) -> Ref:
        """Recompute, for one reader, an equation that is pulled onto the diagonals."""
        if ref.name not in self.f.pulled:
            return ref
        n = self.graph[ref.name]
        by, _ = ref.parts(n.domain)
        args = [self.recomputed(x.at(by), within) for x in n.args]
        return self.g.emit(n.op.at(by), args, within, n.name)

    def table(self, node: Node) -> None:
        """Keep the equation of the whole table, which picks each cell from its diagonal."""
        self.g.loc = node.loc
        self.picked(Ref(node.name, node.domain.identity), node.domain, node.name)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether cells of a table depend on neighbors along two dims."""
    return cx.tuning.vectorized and any(fronts(graph, cx.sizes))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Compute tables diagonal by diagonal if that is cheaper, or the only order."""
    law, seen = "cells that wait for neighbors → diagonals", set[tuple[str, ...]]()
    while f := next((f for f in fronts(graph, cx.sizes) if f.cells not in seen), None):
        seen.add(f.cells)
        by_cell, by_diagonal = costs(graph, f, cx.sizes, cx.target.prices)
        pays = by_cell >= cx.tuning.min_skew_gain * by_diagonal
        if f.only or (pays and fuel().burn(law, f.cells[0])):
            graph = _Skew(graph, f, cx.sizes).rewritten()
            cx.remark(f)
    return graph


SKEW = Pass("skew", run, applies)
