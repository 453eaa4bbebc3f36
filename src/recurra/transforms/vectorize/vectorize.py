"""A dim that orders nothing becomes an axis, first or last, of what varies with it.

    y[b<B,t<T]: f32[4] = mul(x, w, labels='a,a->a')
 →  y[t<T]: f32[B,4] = mul(x, w, labels='za,a->za')

Operands that do not vary with it keep their shape: labels say so, nothing is copied.
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
    """The graph, and the equations that can be said with `dim` as an axis, of all but some.

    Definitions by branches are cut where these change along the dim, if that makes them such.
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
    """The equations that can be said with `dim` as an axis, of all but some."""
    out = {n.name for n in graph.nodes.values() if dim in n.domain and _fits(graph, n, dim)}
    out -= set(but)
    branches = _Branches(graph, dim, sizes)
    while wrong := {
        n for n in out if not _says(graph, graph[n], dim, out) or not branches.stay(graph[n], out)
    }:
        out -= wrong
    return out


def _says(graph: Graph, node: Node, dim: str, members: set[str]) -> bool:
    """Can every operand be read along the axis?"""
    if is_concatenation(graph, node, dim):
        return True
    return all(reads_along(graph, node, dim, a, a.name in members) for a in node.args)


def cycles(graph: Graph) -> dict[str, int]:
    """Map each equation to the number of its strongly connected part."""
    parts = components(graph.nodes, lambda n: [a.name for a in graph[n].args])
    return {n: k for k, part in enumerate(parts) for n in part}


@dataclass
class _Branches:
    """Are operands of a merge still read only where they are chosen, once a dim is an axis?"""

    graph: Graph
    dim: str
    sizes: Mapping[str, int]
    cycle: dict[str, int] = field(default_factory=dict[str, int])
    boxes: dict[tuple[str, int], Domain | None] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        self.cycle = cycles(self.graph)

    def stay(self, node: Node, members: set[str]) -> bool:
        """Do those that `node` reads, if it is a merge, and `node` as an operand of others?"""
        mine = [(node, k) for k in range(len(node.args))] if isinstance(node.op, Merge) else []
        others = [(r, k) for r, k in self.graph.readers[node.name] if isinstance(r.op, Merge)]
        return all(self.stays(r, k, members) for r, k in (*mine, *others))

    def stays(self, reader: Node, index: int, members: set[str]) -> bool:
        """Tell whether a branch stays a merge: on a cycle it may give the cycle its order."""
        a, member = reader.args[index], reader.name in members
        source = self.graph[a.name]
        if member and self.dim in reader.op.mentions():
            if is_concatenation(self.graph, reader, self.dim):
                return all(x.name in members for x in reader.args)
            # a select reads every branch everywhere
            inside = always_inside(a.index, source.domain, reader.domain)
            return inside and self.cycle[a.name] != self.cycle[reader.name]
        if self.as_it_is(reader, a, source, members) or self.box(reader, index) is not None:
            return True
        if self.cycle[a.name] == self.cycle[reader.name]:
            return False
        if member and source.name not in members:
            return always_inside(a.index, source.domain, reader.domain)
        return _safe_apart(reader, a, source, self.dim)

    def as_it_is(self, reader: Node, ref: Ref, source: Node, members: set[str]) -> bool:
        """Does the reader need nothing but the value of the source itself?"""
        if ref.name not in members:
            return reader.name not in members
        e = ref.index[source.domain.dims.index(self.dim)]
        return (
            reader.name in members
            and e == Sym(self.dim)
            and source.domain[self.dim] == reader.domain[self.dim]
            and not ref.slices
        )

    def box(self, merge: Node, index: int) -> Domain | None:
        """The points at which a branch is chosen, looked up once."""
        if (merge.name, index) not in self.boxes:
            self.boxes[merge.name, index] = chosen_at(merge, index, self.sizes)
        return self.boxes[merge.name, index]


def chosen_at(merge: Node, index: int, sizes: Mapping[str, int]) -> Domain | None:
    """The points at which a branch is chosen, if they are a box."""
    assert isinstance(merge.op, Merge)
    found = split_boxes(merge.domain, merge.op.when[index], sizes)
    return found[0].domain if len(found) == 1 and found[0].where == TRUE else None


def _safe_apart(reader: Node, ref: Ref, node: Node, dim: str) -> bool:
    """May a branch be read outside of its merge? One point of the new axis may: zero outside."""
    pairs = zip(ref.index, node.domain, strict=True)
    kept = [
        (e, r) for e, r in pairs if r.dim != dim or isinstance(e, Slice) or dim in index_symbols(e)
    ]
    return always_inside([e for e, _ in kept], Domain(tuple(r for _, r in kept)), reader.domain)


def _fits(graph: Graph, node: Node, dim: str) -> bool:
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
    """One application: `members` get the axis, their readers are told where it is."""

    g: Rewriting
    before: Graph
    dim: str
    members: set[str]
    last: bool
    cycle: dict[str, int]
    now: int = -1  # the cycle of the equation that is being rebuilt

    def emit(self, op: Op, args: tuple[Ref, ...], domain: Domain, stem: str) -> Ref:
        """A new equation; on a cycle it has every dim of the cycle, which may give it its place."""
        inside = any(self.cycle.get(a.name) == self.now for a in args)
        ref = self.g.emit(op, args, domain, stem, whole=inside)
        if inside:
            self.cycle[ref.name] = self.now
        return ref

    def size(self, extent: Range) -> Expr | int:
        return extent.hi - extent.lo

    def new_type(self, node: Node) -> Type:
        size = self.size(node.domain[self.dim])
        shape = (*node.tensor.shape, size) if self.last else (size, *node.tensor.shape)
        return Type(node.tensor.dtype, shape)

    def move(self, ref: Ref, source: int, target: int, within: Domain) -> Ref:
        """The value with one axis moved."""
        if source == target:
            return ref
        order = list(range(self.g.type(ref).rank))
        order.insert(target, order.pop(source))
        return self.emit(Transpose(order=tuple(order)), (ref,), within, "moved")

    def operand(self, node: Node, ref: Ref, domain: Domain) -> tuple[Ref, bool]:
        """The operand that `node` reads now, and whether it has the new axis."""
        source = self.before[ref.name]
        member = node.name in self.members
        if member or ref.name in self.members:
            ref = self.whole(ref, source)
        if ref.name in self.members:
            return self._axis_of_source(node, ref, source, domain, member)
        if member and any(self.dim in index_symbols(e) for e in ref.index):
            return self._gather(node, ref, domain), True
        return ref, False

    def whole(self, ref: Ref, source: Node) -> Ref:
        """A read whose loose ranges along the dim, or to a point of it, have a static end."""
        index: list[Index] = []
        for e, r in zip(ref.index, source.domain, strict=True):
            mine = r.dim == self.dim and source.name in self.members
            loose = isinstance(e, Slice) and (mine or self.dim in index_symbols(e))
            index.append((loose_range(e, r) or e) if isinstance(e, Slice) and loose else e)
        return Ref(ref.name, tuple(index))

    def _gather(self, node: Node, read: Ref, domain: Domain) -> Ref:
        """A range of a source that still runs over the dim: all of it, if elements are taken."""
        r = node.domain[self.dim]
        k = next(k for k, e in enumerate(read.index) if self.dim in index_symbols(e))
        c: Any = shift(read.index[k], self.dim)
        every = self.before[read.name].domain.ranges[k]
        part = Slice(every.lo, every.hi) if c is None else Slice(c + r.lo, c + r.hi)
        ref = read.with_index(k, part)
        at = sum(isinstance(e, Slice) for e in read.index[:k])
        if c is None:
            return self._taken(ref, at, cast("Expr | int", read.index[k]), every, domain, r)
        rank = self.g.type(ref).rank
        return self.move(ref, at, rank - 1 if self.last else 0, domain)

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
            return self.move(
                ref, axis, sum(isinstance(x, Slice) for x in read.index[:k]), domain
            ), False
        if member and self.dim in index_symbols(e):
            mine = node.domain[self.dim]
            c: Any = shift(e, self.dim)
            if c is None:
                return self._taken(ref, axis, e, r, domain, mine), True
            ref = self._cut(ref, axis, c + mine.lo - r.lo, self.size(mine), r, domain)
            rank = self.g.type(ref).rank
            return self.move(ref, axis, rank - 1 if self.last else 0, domain), True
        return self.emit(Pick(axis=axis, at_=e - r.lo), (ref,), domain, f"{read.name}_at"), False

    def _taken(
        self, ref: Ref, axis: int, expr: Expr | int, source: Range, domain: Domain, mine: Range
    ) -> Ref:
        """Elements of an axis by their numbers: the ends again, every second one, all backwards."""
        held = held_at_ends(expr, mine, source, self.g.sizes)
        if held is not None:
            first, start, size, last = held
            part = self._cut(ref, axis, start, size, source, domain)
            ends = [
                self.emit(Cut(axis=axis, start=at, size=1), (part,), domain, "end")
                for at in (0, size - 1)
            ]
            made = (*ends[:first], part, *ends[2 - last :])
            ref = self.emit(Concat(axis=axis), made, domain, "held") if len(made) > 1 else part
            return self.move(ref, axis, self.g.type(ref).rank - 1 if self.last else 0, domain)
        axes = LETTERS[: self.g.type(ref).rank]
        out = axes[:axis] + axes[axis + 1 :]
        out = out + "Z" if self.last else "Z" + out
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
        self.now = self.cycle[node.name]
        member = node.name in self.members
        domain = node.domain.without(self.dim) if member else node.domain
        if member and is_concatenation(self.before, node, self.dim):
            return self.concatenated(node, domain)
        places = [self.place(node, k, domain) for k in range(len(node.args))]
        pairs = [self.operand(node, a, at) for a, at in zip(node.args, places, strict=True)]
        args, flags = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        if not member:
            return replace(node, args=args)
        ranks = tuple(len(self.before.read_type(a).shape) for a in node.args)
        if not any(flags) and self.dim not in node.op.mentions() and not isinstance(node.op, Const):
            return self.copied(node, args, domain)
        op, args = self.batched(node, args, flags, ranks, domain, places)
        locs = node.locs if isinstance(op, Merge) else ()
        return replace(node, op=op, args=args, domain=domain, type=self.new_type(node), locs=locs)

    def place(self, node: Node, index: int, domain: Domain) -> Domain:
        """The domain in which an operand takes shape: its branch, if it is chosen there alone."""
        member = node.name in self.members
        if not isinstance(node.op, Merge) or (member and self.dim in node.op.mentions()):
            return domain
        box = chosen_at(node, index, self.g.sizes)
        return domain if box is None else box.without(self.dim) if member else box

    def concatenated(self, node: Node, domain: Domain) -> Node:
        """The pieces of a definition, one after another."""
        args = tuple(
            Ref(a.name, self.before[a.name].domain.without(self.dim).identity) for a in node.args
        )
        op = Concat(axis=node.tensor.rank if self.last else 0)
        return replace(node, op=op, args=args, domain=domain, type=self.new_type(node), locs=())

    def copied(self, node: Node, args: tuple[Ref, ...], domain: Domain) -> Node:
        """An equation that is the same all along the dim: one value, copied."""
        one = self.emit(node.op, args, domain, f"{node.name}_one")
        axes = LETTERS[: node.tensor.rank]
        labels = f"{axes}->{axes}Z" if self.last else f"{axes}->Z{axes}"
        size = self.size(node.domain[self.dim])
        return replace(
            node,
            op=Expand(labels=labels, sizes=(size,)),
            args=(one,),
            domain=domain,
            type=self.new_type(node),
            locs=(),
        )

    def batched(
        self,
        node: Node,
        args: tuple[Ref, ...],
        flags: tuple[bool, ...],
        ranks: tuple[int, ...],
        domain: Domain,
        places: Sequence[Domain],
    ) -> tuple[Op, tuple[Ref, ...]]:
        """The op of one equation with the new axis; operands are expanded only where it insists."""
        r = node.domain[self.dim]
        size = self.size(r)
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
                return self.choose(node, op, args, flags, domain)
            case op:
                new = op.batch(flags, ranks, self.last)
                if new is None:
                    args = tuple(
                        a if f else self.widen(a, size, at)
                        for a, f, at in zip(args, flags, places, strict=True)
                    )
                    new = op.batch((True,) * len(args), ranks, self.last)
                assert new is not None, f"{op.name} has no batch rule"
                return new, args

    def widen(self, ref: Ref, size: Expr | int, domain: Domain) -> Ref:
        """An operand copied along the new axis."""
        axes = LETTERS[: self.g.type(ref).rank]
        labels = f"{axes}->{axes}Z" if self.last else f"{axes}->Z{axes}"
        return self.emit(Expand(labels=labels, sizes=(size,)), (ref,), domain, "wide")

    def symbol(self, expr: Expr | int, extent: Range, domain: Domain, dtype: str) -> Ref:
        """An expression of the dim, as a vector along the new axis."""
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
        """pick at a point per element: a take, with zeros where it falls outside."""
        (x,), (has,) = args, flags
        rank = self.g.type(x).rank - has
        if (
            not has
            and op.at_ == extent.sym
            and extent.lo == 0
            and self.g.type(x).shape[op.axis] == self.size(extent)
        ):
            order = [
                k for k in range(rank) if k != op.axis
            ]  # every element in turn: the axis itself
            return Transpose(order=(*order, op.axis) if self.last else (op.axis, *order)), (x,)
        axes = LETTERS[:rank]
        full = (axes + "Z" if self.last else "Z" + axes) if has else axes
        rest = axes.replace(axes[op.axis], "")
        out = rest + "Z" if self.last else "Z" + rest
        size = self.g.type(x).shape[full.index(axes[op.axis])]
        at = self.symbol(op.at_, extent, domain, "i32")
        safe = self.symbol(maximum(minimum(op.at_, size - 1), 0), extent, domain, "i32")
        take = Take(labels=f"{full},Z->{out}", axis=axes[op.axis])
        taken = self.emit(take, (x, safe), domain, "taken")
        inside = self.emit(el.Equal(), (at, safe), domain, "inside")
        zero = self.emit(Const(value=0, dtype=self.g.type(x).dtype), (), domain, "zero")
        where = el.Where(labels=f"Z,{out},->{out}" if out != "Z" else "Z,Z,->Z")
        return where, (inside, taken, zero)

    def choose(
        self, node: Node, op: Merge, args: tuple[Ref, ...], flags: tuple[bool, ...], domain: Domain
    ) -> tuple[Op, tuple[Ref, ...]]:
        """A merge whose conditions vary along the new axis: a select."""
        axes = LETTERS[: node.tensor.rank]
        out = axes + "Z" if self.last else "Z" + axes
        labels = [out if f else axes for f in flags]
        value, have = args[-1], labels[-1]
        for k in range(len(args) - 2, 0, -1):
            cond = self._condition(op, k, node, domain)
            select = el.Where(labels=f"{cond[1]},{labels[k]},{have}->{out}")
            value, have = self.emit(select, (cond[0], args[k], value), domain, "chosen"), out
        cond = self._condition(op, 0, node, domain)
        return el.Where(labels=f"{cond[1]},{labels[0]},{have}->{out}"), (cond[0], args[0], value)

    def _condition(self, op: Merge, index: int, node: Node, domain: Domain) -> tuple[Ref, str]:
        if self.dim in symbols(op.when[index]):
            return self.symbol(op.when[index], node.domain[self.dim], domain, "bool"), "Z"
        return self.emit(Value(expr=op.when[index], dtype="bool"), (), domain, "cond"), ""


def vectorize(
    graph: Graph, dim: str, members: set[str], sizes: Mapping[str, int], last: bool = False
) -> Graph:
    """`graph` with `dim` as an axis of every equation in `members` (a subset of `candidates`)."""
    g = Rewriting({}, graph.outputs, graph.dims, sizes)
    v = _Vectorize(g, graph, dim, members, last, cycles(graph))
    for n in graph.nodes.values():  # types first: reads are typed by their sources
        new = (
            n
            if n.name not in members
            else replace(n, domain=n.domain.without(dim), type=v.new_type(n))
        )
        g.nodes[n.name] = new
        g.readers.setdefault(n.name, {})
    for n in graph.nodes.values():
        g.loc = n.loc
        g.nodes[n.name] = v.rebuild(n)
    return Graph(g.nodes, graph.outputs, graph.dims).live()
