"""Points of a loop that wait for nothing of it are taken out of it, all at once.

    x[t<T] = merge(given[t], y[t-1], when=(t < 8, t >= 8))        tp<8: the points that are given
    k[t<T] = f(x)                                                 k_head[tp<8] = f(given[tp])
    y[t<T] = g(x, k[0:t+1])                                       k_of[t<8] = copy(k_head[t])
                                                              →   k_rest[8<=t<T] = f(x)
                                                                  k[t<T] = merge(k_of, k_rest, ..)
                                                                  y[7<=t<T] = g(x, k[0:t+1])

The cut is where the branch changes, or earlier if something else starts there: what is read of y is
y[7]. `tp` orders nothing, so it becomes an axis: of a prompt, all positions are one product. Where
they are many, or read windows of the past, they are taken in `chunks`. So are those of an input
that nothing orders, and which are read by ranges that grow: a prompt of which one token is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

from recurra.cost.thresholds import MAX_CHUNK_POINTS, MAX_PEELED_BYTES, ROWS_PER_TILE
from recurra.cost.tuning import Tuning
from recurra.ir.dims import Role
from recurra.ir.expr import TRUE, Expr, Sym, both, compare, evaluate, lin, symbols
from recurra.ir.graph import (
    Graph,
    Index,
    Node,
    Ref,
    Slice,
    fresh_name,
    index_symbols,
    merge_condition,
)
from recurra.ir.op import LETTERS
from recurra.ir.order import components
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.elementwise import Copy, Going, Where
from recurra.ops.source import Input, Value
from recurra.polyhedral import isl
from recurra.polyhedral.boxes import split_boxes
from recurra.polyhedral.extent import longest_axis
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.growing_ranges import GrowingAxes
from recurra.transforms.iteration_domains.chunk_independent import chunked, size_of, sizes_of
from recurra.transforms.iteration_domains.shrink_domains import demands, least, narrowed
from recurra.transforms.recurrences.scans import running
from recurra.transforms.rewriter.optimization_fuel import fuel

Made = tuple[Graph, list[str]]


def split(
    graph: Graph,
    sizes: Mapping[str, int],
    fewest: int = Tuning.given,
    rows: int = ROWS_PER_TILE,
    chunk: int | None = None,
) -> Made:
    """The graph with `fewest` given points, or more, taken out of its loops, and what was decided.

    The cut is at a multiple of `chunk` steps. `rows` of a batch fill a chunk of the points (0: no
    chunks).
    """
    for dim in graph.declared:
        for m in graph.nodes.values():
            step = chunk or 1
            cut = _cut(graph, m, dim, sizes, step, fewest)
            if rows and cut >= fewest:
                made = _in_chunks(graph, sizes, m, dim, cut, step, rows)
                if made is not None:
                    return made
            while cut >= fewest:
                work = _Split(graph, sizes, m, dim, cut)
                if not work.worthwhile() or not work.whole():
                    break
                if work.most() <= MAX_PEELED_BYTES:
                    if fuel().burn("given points → an axis of their own", m.name):
                        return work.made(), [str(work)]
                    break
                cut = (cut * 3 // 4) // step * step
    return _begun_late(graph, sizes, chunk or 1, fewest)


def _begun_late(graph: Graph, sizes: Mapping[str, int], step: int, fewest: int) -> Made:
    """The graph where no product is asked for before a point: given ones are there already."""
    for dim in graph.declared:
        if not any(_cut(graph, m, dim, sizes, step, fewest) for m in graph.nodes.values()):
            continue
        first = demands(graph, dim, sizes)
        made = [x for n, x in first.items() if isinstance(graph[n].op, Einsum)]
        cut = min(made, default=0)
        cut -= cut % step
        if cut >= fewest and fuel().burn("points that nothing reads → none", dim):
            return narrowed(graph, dim, cut, sizes), [f"{dim}: begins at {cut}"]
    return graph, []


def _in_chunks(
    graph: Graph, sizes: Mapping[str, int], node: Node, dim: str, cut: int, step: int, rows: int
) -> Made | None:
    """The points in chunks, where they are more than two, or read windows."""
    batch = prod(r.size(sizes) for r in node.domain.without(dim) if not r.mentions() - sizes.keys())
    if not batch:
        return None
    ranges = GrowingAxes(graph, sizes, None).ranges.values()
    tiles = [g.size for g in ranges if g.dim == dim and g.lo == 0]
    most = size_of(cut, min([rows // batch, *tiles]))
    few = cut <= 2 * min(MAX_CHUNK_POINTS, rows // batch)
    rounded = (cut, most, -(-cut // most) * most)
    for until, size, points in (rounded, (*sizes_of(cut, step, rows, batch), 0)):
        work = _Split(graph, sizes, node, dim, until, points)
        if not until or size == 1 or (few and work.whole()) or not work.worthwhile():
            return None
        made = work.made()
        if not work.there(made) or not work.summed(made):
            continue
        if not fuel().burn("given points → chunks of them", node.name):
            return None
        made = chunked(work.late(made, step), work.inner, size, until, sizes)
        if made is not None:
            return made, [f"{work}, {size} at a time"]
    return None


def _cut(
    graph: Graph, node: Node, dim: str, sizes: Mapping[str, int], chunk: int, fewest: int
) -> int:
    """The points of a merge, or an input, that are given before a loop; 0: none, or not `fewest`.

    All points of an input are given; what loops read of one is theirs.
    """
    if dim not in node.domain or (node.domain[dim].mentions() - sizes.keys()):
        return 0
    r = node.domain[dim]
    lo, hi = evaluate(r.lo, sizes), evaluate(r.hi, sizes)
    end = _given_end(node, r, sizes) if isinstance(node.op, Merge) else hi
    if lo or end < fewest or (isinstance(node.op, Merge) and end == hi):
        return 0
    if not isinstance(node.op, Merge) and not _is_read_by_ranges(graph, node, dim):
        return 0
    starts = [x for x in demands(graph, dim, sizes).values() if lo < x <= end]
    cut = max(starts, default=end)  # what is only asked for from there on is not computed before
    return cut - cut % chunk


def _given_end(node: Node, extent: Range, sizes: Mapping[str, int]) -> int:
    """The point up to which a merge takes its first branch only; 0: there is none."""
    assert isinstance(node.op, Merge)
    when = node.op.when[0]
    if len(node.op.when) != 2 or symbols(when) - sizes.keys() != frozenset((extent.dim,)):
        return 0
    boxes = split_boxes(Domain((extent,)), when, sizes)
    ends = [evaluate(b.domain[extent.dim].hi, sizes) for b in boxes if b.where == TRUE]
    begun = len(boxes) == len(ends) == 1 and boxes[0].domain[extent.dim].lo == extent.lo
    return ends[0] if begun else 0


def _is_read_by_ranges(graph: Graph, node: Node, dim: str) -> bool:
    """Does nothing made of an input order a dim, and do ranges that grow along it read it?

    In a cycle, reads that take in their own point order nothing: what would need itself by them
    alone is refused, so that another dim orders it.
    """
    if not isinstance(node.op, Input):
        return False
    along = _made_along(graph, node, dim)
    parts = components(along, lambda n: [a.name for a in graph[n].args if a.name in along])
    of = {name: k for k, part in enumerate(parts) for name in part}
    reads = [(n, a, _along(graph, a, dim)) for n in along for a in graph[n].args if a.name in along]
    ordered = any(of[n] == of[a.name] and not _has_own_point(e, dim) for n, a, e in reads)
    return not ordered and any(isinstance(e, Slice) and dim in index_symbols(e) for *_, e in reads)


def _has_own_point(index: Index, dim: str) -> bool:
    """Is it t, or a range that t ends?"""
    return index == Sym(dim) or (
        isinstance(index, Slice) and index.hi == lin([(Sym(dim), 1), (1, 1)])
    )


def _along(graph: Graph, ref: Ref, dim: str) -> Index:
    """The index along a dim of a read of something that has it."""
    return ref.index[graph[ref.name].domain.dims.index(dim)]


def _made_along(graph: Graph, node: Node, dim: str) -> set[str]:
    """The equations over a dim that depend on one, which is left out."""
    out, todo = set[str](), [node.name]
    while todo:
        for n, _ in graph.readers[todo.pop()]:
            if dim in n.domain and n.name not in out:
                out.add(n.name)
                todo.append(n.name)
    return out


@dataclass
class _Split:
    """One merge whose first branch holds below `cut`, and the cycle that it closes.

    `points` are computed at once: those from the cut on, if any, are what nothing reads.
    """

    graph: Graph
    sizes: Mapping[str, int]
    m: Node
    dim: str
    cut: int
    points: int = 0  # 0: those below the cut
    head: dict[str, str] = field(default_factory=dict[str, str])  # equations -> their early points
    copies: dict[str, str] = field(default_factory=dict[str, str])  # of what the rest reads of them
    given_below: dict[Ref, Ref] = field(default_factory=dict[Ref, Ref])

    def __post_init__(self) -> None:
        self.points = self.points or self.cut
        self.early_points = self.graph.fresh_dim(
            Role.PREFIX, self.dim, self.points, taken=self.sizes
        )
        self.inner = self.early_points.name
        self.first = demands(self.graph, self.dim, self.sizes)
        self.sums = {s.before: s.name for s in running(self.graph, self.dim)}
        self.cycle = self.depending()
        self.early = {n for n in self.cycle if self.first.get(n, self.cut) < self.cut}
        members = self.early - {self.m.name}
        while wrong := {n for n in members if not self.free(self.graph[n], members)}:
            members -= wrong
        self.members = members

    def depending(self) -> set[str]:
        """The cycle of a merge; of an input what is made of it."""
        if isinstance(self.m.op, Input):
            return _made_along(self.graph, self.m, self.dim)
        parts = components(self.graph.nodes, lambda n: [a.name for a in self.graph[n].args])
        return set(next(p for p in parts if self.m.name in p))

    def __str__(self) -> str:
        return f"{self.dim}: {self.cut} points at once for {len(self.members)} equations"

    @property
    def box(self) -> Domain:
        return Domain((Range(self.dim, self.cut),))

    def branch(self, node: Node) -> Ref | None:
        """The operand that a merge takes at all of the early points."""
        assert isinstance(node.op, Merge)
        for k, a in enumerate(node.args):
            when = merge_condition(node, k)
            if when is not None and isl.always(when, self.box):
                return a
        return None

    def free(self, node: Node, members: set[str]) -> bool:
        """Can the early points be said of early points, in any order?"""
        if not node.op.pure or isinstance(node.type, Tuple) or node.name in self.graph.outputs:
            return False
        if isinstance(node.op, Going):  # it ends the loop
            return False
        args = node.args
        if node.name in self.sums:
            return self.sums[node.name] in members
        if isinstance(node.op, Merge):
            one = self.branch(node) if self.dim in node.op.mentions() else None
            if one is None and self.dim in node.op.mentions():
                return False
            args = (one,) if one is not None else node.args
        return all(self.reads(a, members) for a in args)

    def reads(self, ref: Ref, members: set[str]) -> bool:
        if ref.name not in self.cycle:
            return True
        if ref.name != self.m.name and ref.name not in members:
            return False
        for e, r in zip(ref.index, self.graph[ref.name].domain, strict=True):
            if r.dim == self.dim:
                prefix = isinstance(e, Slice) and e.pad is None
                if e != Sym(self.dim) and not (prefix and ref.name in members):
                    return False
            elif self.dim in index_symbols(e):
                return False
        return True

    def worthwhile(self) -> bool:
        """All products of the early points, and what they wait for, can be taken out.

        What the merge reads there is given: not so a state that runs backwards, x[t+1] below T-1.
        """
        given = self.branch(self.m) if isinstance(self.m.op, Merge) else None
        if isinstance(self.m.op, Merge) and (given is None or given.name in self.cycle):
            return False
        left = self.early - self.members
        products = [n for n in self.members if isinstance(self.graph[n].op, Einsum)]
        return bool(products) and not any(isinstance(self.graph[n].op, Einsum) for n in left)

    def whole(self) -> bool:
        """Do ranges that members read begin at the first point: does one mask do for all?

        Running sums are none of these.
        """
        read = [e for n in self.members for a in self.graph[n].args for e in a.slices]
        return not self.sums.keys() & self.members and all(
            e.lo == 0 and e.step == 1 for e in read if self.dim in index_symbols(e)
        )

    def most(self) -> int:
        """Bytes of the largest value at all of the points."""
        env = {**self.sizes, self.dim: self.cut - 1}
        out = 0
        for name in self.members:
            n = self.graph[name]
            points = prod(
                1 if r.mentions() - env.keys() else r.size(env) for r in n.domain.without(self.dim)
            )
            shape = tuple(longest_axis(size, n.domain, env) for size in n.tensor.shape)
            out = max(out, self.cut * points * Type(n.tensor.dtype, shape).nbytes({}))
        return out

    # ---- the graph

    def made(self) -> Graph:
        across = [n for n in self.graph.nodes if n in self.members and self.across(n)]
        nodes = dict(self.graph.nodes)
        for n in [n for n in self.graph.nodes if n in self.members]:
            self.point(nodes, n)
        for name in across:
            n = self.graph[name]
            if evaluate(n.domain[self.dim].hi, self.sizes) <= self.cut:
                at = Ref(self.head[name], n.domain.identity)
                nodes[name] = replace(n, op=Copy(), args=(at,), locs=())
                continue
            rest, copy = fresh_name(f"{name}_rest", nodes), fresh_name(f"{name}_of", nodes)
            nodes[rest], self.copies[name] = replace(n, name=rest), copy
            part = self.graph[name].domain.with_range(Range(self.dim, self.cut))
            at = Ref(self.head[name], n.domain.identity)
            nodes[copy] = Node(copy, Copy(), (at,), part, n.type, n.loc)
            t = Sym(self.dim)
            when = (compare("<", t, self.cut), compare(">=", t, self.cut))
            args = (Ref(copy, n.domain.identity), Ref(rest, n.domain.identity))
            nodes[name] = Node(name, Merge(when=when), args, n.domain, n.type, n.loc)
        more = {self.dim: (self.early_points,)}
        dims = chain(*((d, *more.get(d.name, ())) for d in self.graph.dims))
        graph = Graph(nodes, self.graph.outputs, tuple(dims)).live()
        return narrowed(graph, self.dim, self.cut, self.sizes)

    def there(self, made: Graph) -> bool:
        """Is all that is read of the outside there, at points that nothing asks for, too?"""
        return all(
            r.dim != self.dim
            or self.inner not in index_symbols(e)
            or (not isinstance(e, Slice) and evaluate(r.hi, self.sizes) >= self.points)
            for n in made.nodes.values()
            for a in n.args
            for e, r in zip(a.index, made[a.name].domain, strict=True)
            if self.points > self.cut and self.inner in n.domain
        )

    def summed(self, made: Graph) -> bool:
        """Is nothing asked of running sums but what they are at the end of the early points?"""
        first = demands(made, self.dim, self.sizes, self.cut)
        return all(first.get(s, self.cut) >= self.cut - 1 for s in self.sums.values())

    def late(self, made: Graph, step: int) -> Graph:
        """The graph where only such early points are copied as the rest asks for: of a window."""
        first, nodes = demands(made, self.dim, self.sizes, self.cut), dict(made.nodes)
        for name, copy in self.copies.items():
            lo = min(first[name], self.cut - 1)
            for x in (name, copy) if name in nodes else ():
                ranges = (
                    replace(r, lo=lo - lo % step) if r.dim == self.dim else r
                    for r in made[x].domain
                )
                nodes[x] = replace(made[x], domain=Domain(tuple(ranges)))
        return Graph(nodes, made.outputs, made.dims)

    def across(self, name: str) -> bool:
        """Does what is left of the loop read early points?"""
        for reader, k in self.graph.readers[name]:
            first = self.first.get(reader.name)
            if reader.name in self.members:
                first = self.cut
            a = reader.args[k]
            at = least(self.graph, reader, k, a, self.dim, self.sizes, first)
            if at is not None and at < self.cut:
                return True
        return False

    def point(self, nodes: dict[str, Node], name: str) -> str:
        """An equation at its early points, over a dim of their own; and those that it needs."""
        if name in self.head:
            return self.head[name]
        n = self.graph[name]
        if isinstance(n.op, Copy) and self.graph.is_identity(n.args[0]):
            self.head[name] = self.point(nodes, n.args[0].name)
            return self.head[name]
        new = self.head[name] = fresh_name(f"{name}_head", nodes)
        nodes[new] = n  # the name is taken
        by: dict[str, Expr | int] = {self.dim: Sym(self.inner)}
        ranges = (Range(self.inner, self.points) if r.dim == self.dim else r for r in n.domain)
        domain, args, op = Domain(tuple(ranges)), n.args, n.op
        if isinstance(op, Merge) and self.dim in op.mentions() and name not in self.sums:
            one = self.branch(n)
            assert one is not None
            args, op = (one,), Merge(when=(both(),))
        type_ = n.type.at(by)
        reads = tuple(self.read(nodes, a, domain) for a in args)
        nodes[new] = Node(new, op.at(by), reads, domain, type_, n.loc)
        return new

    def read(self, nodes: dict[str, Node], a: Ref, within: Domain) -> Ref:
        """An operand at early points."""
        if a.name == self.m.name and isinstance(self.m.op, Merge):
            source = self.branch(self.m)
            assert source is not None
            by = dict(zip(self.m.domain.dims, a.index, strict=True))
            at = source.at({d: e for d, e in by.items() if not isinstance(e, Slice)})
            return self.read(nodes, at, within)
        source_node = self.graph[a.name]
        if self.dim in source_node.domain and (a.name in self.members or self.alike(a)):
            name = self.point(nodes, a.name)
        else:
            name = a.name
        index = [
            replace(e, loose=True) if isinstance(e, Slice) and self.dim in index_symbols(e) else e
            for e in a.index
        ]
        ref = Ref(name, tuple(index)).at({self.dim: Sym(self.inner)})
        mine = any(self.inner in index_symbols(e) for e in ref.index)
        if self.points > self.cut and mine and isinstance(source_node.op, Input):
            return self.below(nodes, ref, within)
        return ref

    def below(self, nodes: dict[str, Node], ref: Ref, within: Domain) -> Ref:
        """Read a given value; at points that nobody asks for, which may hold any, its last."""
        if any(isinstance(e, Slice) for e in ref.index):
            return ref
        if ref not in self.given_below:
            n = self.graph[ref.name]
            used = set().union(*map(index_symbols, ref.index))
            domain = Domain(tuple(r for r in within if r.dim in used))
            seen, new = fresh_name("seen", nodes), fresh_name(f"{ref.name}_head", nodes)
            when = Value(expr=compare("<", Sym(self.inner), self.cut), dtype="bool")
            nodes[seen] = Node(seen, when, (), domain.of({self.inner}), Type("bool"), n.loc)
            axes = LETTERS[: n.tensor.rank]
            reads = (Ref(seen, (Sym(self.inner),)), ref, ref.at({self.inner: self.cut - 1}))
            where = Where(labels=f",{axes},{axes}->{axes}")
            nodes[new] = Node(new, where, reads, domain, n.type, n.loc)
            self.given_below[ref] = Ref(new, domain.identity)
        return self.given_below[ref]

    def alike(self, ref: Ref) -> bool:
        """Can what does not belong to the cycle be said over the early points, too?"""
        n = self.graph[ref.name]
        if not n.op.pure or isinstance(n.op, (Input, Merge)) or isinstance(n.type, Tuple):
            return False
        at = n.domain.dims.index(self.dim)
        e = ref.index[at]
        mine = e == Sym(self.dim) or isinstance(e, Slice)
        return mine and all(
            self.dim not in self.graph[x.name].domain or self.alike(x) or self.given(x)
            for x in n.args
        )

    def given(self, ref: Ref) -> bool:
        n = self.graph[ref.name]
        return isinstance(n.op, Input) and ref == self.graph.read(ref.name)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether enough points of a loop that has products are given before it."""
    chunk, fewest = cx.tuning.chunk or 1, cx.tuning.given
    nodes = graph.nodes.values()
    dims = {d for n in nodes if isinstance(n.op, Einsum) for d in n.domain.dims}
    every = ((m, d) for d in dims for m in nodes) if fewest else ()
    return any(_cut(graph, m, dim, cx.sizes, chunk, fewest) for m, dim in every)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Take points that wait for nothing of a loop, such as those of a prompt, out of it."""
    tuning = cx.tuning
    new, decided = split(graph, cx.sizes, tuning.given, cx.target.rows, tuning.chunk)
    cx.is_split = bool(decided)
    cx.remark(*decided)
    return new


PEEL_INDEPENDENT = Pass("peel_independent", run, applies)
