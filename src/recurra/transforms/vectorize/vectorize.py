"""Make a dim that imposes no order an axis, first or last, of the equations over it.

    y[b<B,t<T]: f32[4] = mul(x, w, labels='a,a->a')
 →  y[t<T]: f32[B,4] = mul(x, w, labels='za,a->za')

Operands that do not vary with it keep their shape: they lack the label, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from recurra.ir.expr import TRUE, Expr, Sym, lin, maximum, minimum, substitute, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import LETTERS, Op
from recurra.ir.order import components
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops import elementwise as el
from recurra.ops.control import Foreign, Merge
from recurra.ops.indexing import Pick, Take
from recurra.ops.movement import Concat, Cut, Expand, Reshape, Transpose
from recurra.ops.permutation import Permutation
from recurra.ops.random import Uniform
from recurra.ops.source import Const, Input, Value
from recurra.polyhedral.boxes import split_boxes
from recurra.polyhedral.dependence import always_inside
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.vectorize.split_index_sets import is_concatenation, split_index_sets
from recurra.transforms.vectorize.vectorized_reads import (
    held_at_ends,
    is_read_along,
    loose_range,
    reads_along,
    reads_once,
    shift,
)


def with_axis(
    graph: Graph, dim: str, sizes: Mapping[str, int], but: Collection[str] = ()
) -> tuple[Graph, set[str]]:
    """Return the graph, and all equations that can have `dim` as an axis, without those in `but`.

    Merges are cut where branches change along the dim, if they can have the axis then.
    """
    names = {
        n.name
        for n in graph.nodes.values()
        if isinstance(n.op, Merge) and dim in n.op.mentions() and n.name not in but
    }
    while True:
        cut, joined = split_index_sets(graph, dim, names, sizes) if names else (graph, {})
        out = candidates(cut, dim, sizes, but)
        kept = {name for name, whole in joined.items() if whole in out}
        if kept == names:
            return cut, out
        names = kept


def candidates(
    graph: Graph, dim: str, sizes: Mapping[str, int], but: Collection[str] = ()
) -> set[str]:
    """Return all equations that can have `dim` as an axis, without those in `but`."""
    out = {n.name for n in graph.nodes.values() if dim in n.domain and _can_have(graph, n, dim)}
    out -= set(but)
    branches = _Branches(graph, dim, sizes)

    def can_read_operands(node: Node) -> bool:
        return is_concatenation(graph, node, dim) or all(
            reads_along(graph, node, dim, a, a.name in out) for a in node.args
        )

    while wrong := {
        n for n in out if not can_read_operands(graph[n]) or not branches.stay(graph[n], out)
    }:
        out -= wrong
    return out


def cycles(graph: Graph) -> dict[str, int]:
    """Map each equation to the number of its strongly connected component."""
    parts = components(graph.nodes, lambda n: [a.name for a in graph[n].args])
    return {n: k for k, part in enumerate(parts) for n in part}


@dataclass
class _Branches:
    """The branches of merges, which must be read only where they are chosen, also with the axis."""

    graph: Graph
    dim: str
    sizes: Mapping[str, int]
    cycle: dict[str, int] = field(default_factory=dict[str, int])
    boxes: dict[tuple[str, int], Domain | None] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        self.cycle = cycles(self.graph)

    def stay(self, node: Node, members: set[str]) -> bool:
        """Tell whether the branches of `node` stay branches, and so do those that read it."""
        mine = [(node, k) for k in range(len(node.args))] if isinstance(node.op, Merge) else []
        others = [(r, k) for r, k in self.graph.readers[node.name] if isinstance(r.op, Merge)]
        return all(self.stays(r, k, members) for r, k in (*mine, *others))

    def stays(self, reader: Node, operand: int, members: set[str]) -> bool:
        """Tell whether a branch stays a merge: on a cycle it may give the cycle its order."""
        a, member = reader.args[operand], reader.name in members
        source = self.graph[a.name]
        if member and self.dim in reader.op.mentions():
            if is_concatenation(self.graph, reader, self.dim):
                return all(x.name in members for x in reader.args)
            # a select reads every branch everywhere
            inside = always_inside(a.index, source.domain, reader.domain)
            return inside and self.cycle[a.name] != self.cycle[reader.name]
        if self.is_unchanged(reader, a, source, members) or self.box(reader, operand) is not None:
            return True
        if self.cycle[a.name] == self.cycle[reader.name]:
            return False
        if member and source.name not in members:
            return always_inside(a.index, source.domain, reader.domain)
        # one point of the new axis may be read anywhere: it is zero outside
        pairs = zip(a.index, source.domain, strict=True)
        kept = [
            (e, r)
            for e, r in pairs
            if r.dim != self.dim or isinstance(e, Slice) or self.dim in index_symbols(e)
        ]
        return always_inside([e for e, _ in kept], Domain(tuple(r for _, r in kept)), reader.domain)

    def is_unchanged(self, reader: Node, ref: Ref, source: Node, members: set[str]) -> bool:
        """Tell whether a reader reads the value of a source as it is, with or without the axis."""
        if ref.name not in members:
            return reader.name not in members
        e = ref.index[source.domain.dims.index(self.dim)]
        return (
            reader.name in members
            and e == Sym(self.dim)
            and source.domain[self.dim] == reader.domain[self.dim]
            and not ref.slices
        )

    def box(self, merge: Node, branch: int) -> Domain | None:
        """The points at which a branch is chosen, from a cache."""
        if (merge.name, branch) not in self.boxes:
            self.boxes[merge.name, branch] = chosen_at(merge, branch, self.sizes)
        return self.boxes[merge.name, branch]


def chosen_at(merge: Node, branch: int, sizes: Mapping[str, int]) -> Domain | None:
    """Return the points at which a branch is chosen, if they are a box."""
    assert isinstance(merge.op, Merge)
    found = split_boxes(merge.domain, merge.op.when[branch], sizes)
    return found[0].domain if len(found) == 1 and found[0].where == TRUE else None


def _can_have(graph: Graph, node: Node, dim: str) -> bool:
    """Tell whether an equation can have the axis, and its readers can read it then."""
    if isinstance(node.type, Tuple) or isinstance(node.op, Input) or not node.op.pure:
        return False
    if any(dim in symbols(s) for s in node.type.shape) or node.op.name == "item":
        return False
    r = node.domain[dim]
    if r.mentions() & set(node.domain.dims) or any(dim in x.mentions() for x in node.domain):
        return False
    if dim in node.op.mentions() and not isinstance(
        node.op, (Value, Uniform, Permutation, Pick, Merge)
    ):
        return False
    if not all(reads_once(a, dim) for a in node.args):
        return False
    return all(
        is_read_along(graph, reader.args[k], node, dim) for reader, k in graph.readers[node.name]
    )


@dataclass
class _Vectorize:
    """One application: `members` get the axis, and their readers read it."""

    g: Rewriting
    before: Graph
    dim: str
    members: set[str]
    last: bool
    cycle: dict[str, int]
    current: int = -1  # the cycle of the equation that is being rebuilt

    def emit(self, op: Op, args: tuple[Ref, ...], domain: Domain, stem: str) -> Ref:
        """Add an equation; on a cycle it has every dim of the cycle, which may order it."""
        inside = any(self.cycle.get(a.name) == self.current for a in args)
        ref = self.g.emit(op, args, domain, stem, whole=inside)
        if inside:
            self.cycle[ref.name] = self.current
        return ref

    def size(self, extent: Range) -> Expr | int:
        return extent.hi - extent.lo

    def new_type(self, node: Node) -> Type:
        size = self.size(node.domain[self.dim])
        shape = (*node.tensor.shape, size) if self.last else (size, *node.tensor.shape)
        return Type(node.tensor.dtype, shape)

    def move(self, ref: Ref, source: int, within: Domain, target: int | None = None) -> Ref:
        """Move an axis to the place `target`, or to where the new axis goes."""
        rank = self.g.type(ref).rank
        place = target if target is not None else rank - 1 if self.last else 0
        if source == place:
            return ref
        order = list(range(rank))
        order.insert(place, order.pop(source))
        return self.emit(Transpose(order=tuple(order)), (ref,), within, "moved")

    def with_new(self, axes: str) -> str:
        """The labels of axes, with that of the new axis, Z, at its place."""
        return axes + "Z" if self.last else "Z" + axes

    def operand(self, node: Node, ref: Ref, domain: Domain) -> tuple[Ref, bool]:
        """The operand that `node` reads now, and whether it has the new axis."""
        source = self.before[ref.name]
        member = node.name in self.members
        if member or ref.name in self.members:
            ref = self.with_static_ends(ref, source)
        if ref.name in self.members:
            return self._axis_of_source(node, ref, source, domain, member)
        if member and any(self.dim in index_symbols(e) for e in ref.index):
            return self._gather(node, ref, domain), True
        return ref, False

    def with_static_ends(self, ref: Ref, source: Node) -> Ref:
        """A read whose loose ranges along the dim, or to a point of it, have a static end."""
        index: list[Index] = []
        for e, r in zip(ref.index, source.domain, strict=True):
            mine = r.dim == self.dim and source.name in self.members
            loose = isinstance(e, Slice) and (mine or self.dim in index_symbols(e))
            index.append((loose_range(e, r) or e) if isinstance(e, Slice) and loose else e)
        return Ref(ref.name, tuple(index))

    def _gather(self, node: Node, read: Ref, domain: Domain) -> Ref:
        """Read the range of a source that runs over the dim, or take its elements by number."""
        r = node.domain[self.dim]
        k = next(k for k, e in enumerate(read.index) if self.dim in index_symbols(e))
        c: Any = shift(read.index[k], self.dim)
        every = self.before[read.name].domain.ranges[k]
        part = Slice(every.lo, every.hi) if c is None else Slice(c + r.lo, c + r.hi)
        ref = read.with_index(k, part)
        at = sum(isinstance(e, Slice) for e in read.index[:k])
        if c is None:
            return self._taken(ref, at, cast("Expr | int", read.index[k]), every, domain, r)
        return self.move(ref, at, domain)

    def _axis_of_source(
        self, node: Node, read: Ref, source: Node, domain: Domain, member: bool
    ) -> tuple[Ref, bool]:
        k = source.domain.dims.index(self.dim)
        e, r = read.index[k], source.domain[self.dim]
        ref = Ref(read.name, (*read.index[:k], *read.index[k + 1 :]))
        lead = sum(isinstance(x, Slice) for x in ref.index)
        axis = lead + len(source.type.shape) if self.last else lead
        if isinstance(e, Slice):
            ref = self._cut(ref, axis, e.lo - r.lo, e.hi - e.lo, r, domain)
            place = sum(isinstance(x, Slice) for x in read.index[:k])
            return self.move(ref, axis, domain, place), False
        if member and self.dim in index_symbols(e):
            mine = node.domain[self.dim]
            c: Any = shift(e, self.dim)
            if c is None:
                return self._taken(ref, axis, e, r, domain, mine), True
            ref = self._cut(ref, axis, c + mine.lo - r.lo, self.size(mine), r, domain)
            return self.move(ref, axis, domain), True
        return self.emit(Pick(axis=axis, at_=e - r.lo), (ref,), domain, f"{read.name}_at"), False

    def _taken(
        self, ref: Ref, axis: int, expr: Expr | int, source: Range, domain: Domain, mine: Range
    ) -> Ref:
        """Take elements of an axis by number, such as every second one, or all backward."""
        held = held_at_ends(expr, mine, source, self.g.sizes)
        if held is not None:
            first, start, size, last = held
            part = self._cut(ref, axis, start, size, source, domain)
            ends = [
                self.emit(Cut(axis=axis, start=at, size=1), (part,), domain, "end")
                for at in (0, size - 1)
            ]
            parts = (*ends[:first], part, *ends[2 - last :])
            ref = self.emit(Concat(axis=axis), parts, domain, "held") if len(parts) > 1 else part
            return self.move(ref, axis, domain)
        axes = LETTERS[: self.g.type(ref).rank]
        out = self.with_new(axes.replace(axes[axis], ""))
        op = Take(labels=f"{axes},Z->{out}", axis=axes[axis])
        at = lin([(expr, 1), (source.lo, -1)])
        return self.emit(op, (ref, self.symbol(at, mine, domain, "i32")), domain, "taken")

    def _cut(
        self,
        ref: Ref,
        axis: int,
        start: Expr | int,
        size: Expr | int,
        extent: Range,
        domain: Domain,
    ) -> Ref:
        if start == 0 and size == self.size(extent):
            return ref
        return self.emit(Cut(axis=axis, start=start, size=size), (ref,), domain, "cut")

    def rebuild(self, node: Node) -> Node:
        """An equation with the axis, or with reads of it."""
        self.current = self.cycle[node.name]
        member = node.name in self.members
        domain = node.domain.without(self.dim) if member else node.domain
        if member and is_concatenation(self.before, node, self.dim):
            op: Op = Concat(axis=node.tensor.rank if self.last else 0)
            args = tuple(
                Ref(a.name, self.before[a.name].domain.without(self.dim).identity)
                for a in node.args
            )
        else:
            places = [self.place(node, k, domain) for k in range(len(node.args))]
            pairs = [self.operand(node, a, at) for a, at in zip(node.args, places, strict=True)]
            args, flags = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
            if not member:
                return replace(node, args=args)
            constant = not any(flags) and self.dim not in node.op.mentions()
            if constant and not isinstance(node.op, Const):  # one value, copied
                args = (self.emit(node.op, args, domain, f"{node.name}_one"),)
                op = self.expand(node.tensor.rank, self.size(node.domain[self.dim]))
            else:
                op, args = self.batched(node, args, flags, domain, places)
        locs = node.locs if isinstance(op, Merge) else ()
        return replace(node, op=op, args=args, domain=domain, type=self.new_type(node), locs=locs)

    def place(self, node: Node, operand: int, domain: Domain) -> Domain:
        """The domain of what is emitted for an operand: the points at which its branch is taken."""
        member = node.name in self.members
        if not isinstance(node.op, Merge) or (member and self.dim in node.op.mentions()):
            return domain
        box = chosen_at(node, operand, self.g.sizes)
        return domain if box is None else box.without(self.dim) if member else box

    def expand(self, rank: int, size: Expr | int) -> Expand:
        """The op that copies a value along the new axis."""
        axes = LETTERS[:rank]
        return Expand(labels=f"{axes}->{self.with_new(axes)}", sizes=(size,))

    def batched(
        self,
        node: Node,
        args: tuple[Ref, ...],
        flags: tuple[bool, ...],
        domain: Domain,
        places: Sequence[Domain],
    ) -> tuple[Op, tuple[Ref, ...]]:
        """The op of an equation with the new axis; operands are expanded only if it must be so."""
        r = node.domain[self.dim]
        size = self.size(r)
        ranks = tuple(len(self.before.read_type(a).shape) for a in node.args)
        match node.op:
            case Const() | Reshape() as op:
                return op.batch_size(size, self.last), args
            case Value() | Uniform() | Permutation() as op:
                op = op if r.lo == 0 else op.at({self.dim: r.sym + r.lo})
                return op.batch_symbol(self.dim, size, self.last), args
            case Foreign() as op:
                return op.batch_sized(flags, size, self.last), args
            case Pick() as op if self.dim in symbols(op.at_):
                return self.pick_many(op, args, flags, r, domain)
            case Merge() as op if self.dim in op.mentions():
                return self.select(node, op, args, flags, domain)
            case op:
                new = op.batch(flags, ranks, self.last)
                if new is None:
                    args = tuple(
                        a if f else self.emit(self.expand(rank, size), (a,), at, "wide")
                        for a, f, rank, at in zip(args, flags, ranks, places, strict=True)
                    )
                    new = op.batch((True,) * len(args), ranks, self.last)
                assert new is not None, f"{op.name} has no batch rule"
                return new, args

    def symbol(self, expr: Expr | int, extent: Range, domain: Domain, dtype: str) -> Ref:
        """Emit an expression of the dim as a vector along the new axis."""
        e = substitute(expr, {self.dim: extent.sym + extent.lo}) if extent.lo != 0 else expr
        op = Value(expr=e, dtype=dtype).batch_symbol(self.dim, self.size(extent), self.last)
        return self.emit(op, (), domain, "at")

    def pick_many(
        self,
        op: Pick,
        args: tuple[Ref, ...],
        flags: tuple[bool, ...],
        extent: Range,
        domain: Domain,
    ) -> tuple[Op, tuple[Ref, ...]]:
        """Make a pick at a point that varies along the axis a take, with zeros outside."""
        (x,), (has,) = args, flags
        shape = self.g.type(x).shape
        rank = len(shape) - has
        each = op.at_ == extent.sym and extent.lo == 0 and shape[op.axis] == self.size(extent)
        if each and not has:  # every element in turn: the axis itself
            order = [k for k in range(rank) if k != op.axis]
            return Transpose(order=(*order, op.axis) if self.last else (op.axis, *order)), (x,)
        axes = LETTERS[:rank]
        full = self.with_new(axes) if has else axes
        out = self.with_new(axes.replace(axes[op.axis], ""))
        size = shape[full.index(axes[op.axis])]
        at = self.symbol(op.at_, extent, domain, "i32")
        safe = self.symbol(maximum(minimum(op.at_, size - 1), 0), extent, domain, "i32")
        take = Take(labels=f"{full},Z->{out}", axis=axes[op.axis])
        taken = self.emit(take, (x, safe), domain, "taken")
        inside = self.emit(el.Equal(), (at, safe), domain, "inside")
        zero = self.emit(Const(value=0, dtype=self.g.type(x).dtype), (), domain, "zero")
        where = el.Where(labels=f"Z,{out},->{out}" if out != "Z" else "Z,Z,->Z")
        return where, (inside, taken, zero)

    def select(
        self, node: Node, op: Merge, args: tuple[Ref, ...], flags: tuple[bool, ...], domain: Domain
    ) -> tuple[Op, tuple[Ref, ...]]:
        """Make a merge whose conditions vary along the axis a chain of selects."""
        axes = LETTERS[: node.tensor.rank]
        out = self.with_new(axes)
        labels = [out if f else axes for f in flags]
        value, have = args[-1], labels[-1]
        for k in range(len(args) - 2, 0, -1):
            on, letter = self._condition(op.when[k], node, domain)
            where = el.Where(labels=f"{letter},{labels[k]},{have}->{out}")
            value, have = self.emit(where, (on, args[k], value), domain, "chosen"), out
        on, letter = self._condition(op.when[0], node, domain)
        return el.Where(labels=f"{letter},{labels[0]},{have}->{out}"), (on, args[0], value)

    def _condition(self, when: Expr, node: Node, domain: Domain) -> tuple[Ref, str]:
        if self.dim in symbols(when):
            return self.symbol(when, node.domain[self.dim], domain, "bool"), "Z"
        return self.emit(Value(expr=when, dtype="bool"), (), domain, "cond"), ""


def vectorize(
    graph: Graph, dim: str, members: set[str], sizes: Mapping[str, int], last: bool = False
) -> Graph:
    """Return `graph` with `dim` as an axis of each of `members`, a subset of `candidates`."""
    g = Rewriting({}, graph.outputs, graph.dims, sizes)
    v = _Vectorize(g, graph, dim, members, last, cycles(graph))
    for n in graph.nodes.values():  # types first: reads are typed by their sources
        if n.name in members:
            n = replace(n, domain=n.domain.without(dim), type=v.new_type(n))
        g.nodes[n.name] = n
        g.readers.setdefault(n.name, {})
    for n in graph.nodes.values():
        g.loc = n.loc
        g.nodes[n.name] = v.rebuild(n)
    return g.graph.live()
