"""Peel the points of a loop that do not depend on it, and compute them all at once before it.

    x[t<T] = merge(given[t], y[t-1], when=(t < 8, t >= 8))        tp<8: the points to peel
    k[t<T] = f(x)                                                 k_head[tp<8] = f(given[tp])
    y[t<T] = g(x, k[0:t+1])                                       k_of[t<8] = copy(k_head[t])
                                                              →   k_rest[8<=t<T] = f(x)
                                                                  k[t<T] = merge(k_of, k_rest, ..)
                                                                  y[7<=t<T] = g(x, k[0:t+1])

The loop is cut where the branch changes, or earlier if another equation starts there: of y, y[7] is
read. `tp` imposes no order, so it becomes an axis: all positions of a prompt are one product. Where
there are many, or they read windows of the past, they run in chunks (`chunk_independent`). So do
the points of an input that nothing orders, read by growing ranges: a prompt of which only one token
is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

from recurra.cost.thresholds import MAX_CHUNK_POINTS, MAX_PEELED_BYTES, ROWS_PER_TILE
from recurra.cost.tuning_knobs import Tuning
from recurra.ir.dims import Role
from recurra.ir.expr import TRUE, Expr, Sym, all_of, compare, evaluate, lin, symbols
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
from recurra.transforms.iteration_domains.chunk_independent import (
    padded_chunks,
    split_into_chunks,
    whole_chunks,
)
from recurra.transforms.iteration_domains.shrink_domains import first_demands, first_read, start_at
from recurra.transforms.recurrences.scans import running_sums
from recurra.transforms.rewriter.optimization_fuel import fuel

PeelResult = tuple[Graph, list[str]]


def split(
    graph: Graph,
    sizes: Mapping[str, int],
    fewest: int = Tuning.min_peeled_points,
    rows: int = ROWS_PER_TILE,
    chunk: int | None = None,
) -> PeelResult:
    """Return the graph with `fewest` or more points peeled off a loop, and what was decided.

    The cut is at a multiple of `chunk` steps. `rows` of a batch fill a chunk (0: no chunks).
    """
    step = chunk or 1
    for dim in graph.declared:
        for m in graph.nodes.values():
            cut = _cut(graph, m, dim, sizes, step, fewest)
            if rows and cut >= fewest:
                peeled = _in_chunks(graph, sizes, m, dim, cut, step, rows)
                if peeled is not None:
                    return peeled
            while cut >= fewest:
                work = _Peeling(graph, sizes, m, dim, cut)
                if not work.is_worthwhile() or not work.reads_whole_prefixes():
                    break
                if work.largest_bytes() <= MAX_PEELED_BYTES:
                    if fuel().burn("given points → an axis of their own", m.name):
                        return work.peeled(), [str(work)]
                    break
                cut = (cut * 3 // 4) // step * step
    return _start_late(graph, sizes, step, fewest)


def _start_late(graph: Graph, sizes: Mapping[str, int], step: int, fewest: int) -> PeelResult:
    """Start a loop at the first point at which a product is read; the inputs before are known."""
    for dim in graph.declared:
        if not any(_cut(graph, m, dim, sizes, step, fewest) for m in graph.nodes.values()):
            continue
        first = first_demands(graph, dim, sizes)
        cut = min((x for n, x in first.items() if isinstance(graph[n].op, Einsum)), default=0)
        cut -= cut % step
        if cut >= fewest and fuel().burn("points that nothing reads → none", dim):
            return start_at(graph, dim, cut, sizes), [f"{dim}: begins at {cut}"]
    return graph, []


def _in_chunks(
    graph: Graph, sizes: Mapping[str, int], node: Node, dim: str, cut: int, step: int, rows: int
) -> PeelResult | None:
    """The points in chunks, if these are more than two, or if the points read windows."""
    batch = prod(r.size(sizes) for r in node.domain.without(dim) if not r.mentions() - sizes.keys())
    if not batch:
        return None
    ranges = GrowingAxes(graph, sizes, None).ranges.values()
    tiles = [g.size for g in ranges if g.dim == dim and g.lo == 0]
    most = padded_chunks(cut, min([rows // batch, *tiles]))
    few = cut <= 2 * min(MAX_CHUNK_POINTS, rows // batch)
    padded = (cut, most, -(-cut // most) * most)
    for end, size, points in (padded, (*whole_chunks(cut, step, rows, batch), 0)):
        work = _Peeling(graph, sizes, node, dim, end, points)
        if not end or size == 1 or (few and work.reads_whole_prefixes()):
            return None
        if not work.is_worthwhile():
            return None
        peeled = work.peeled()
        if not work.has_all_inputs(peeled) or not work.only_last_sums_are_read(peeled):
            continue
        if not fuel().burn("given points → chunks of them", node.name):
            return None
        split = split_into_chunks(
            work.without_unread_copies(peeled, step), work.inner, size, end, sizes
        )
        if split is not None:
            return split, [f"{work}, {size} at a time"]
    return None


def _cut(
    graph: Graph, node: Node, dim: str, sizes: Mapping[str, int], step: int, fewest: int
) -> int:
    """The points of a merge, or of an input, that are known before a loop; 0: not `fewest`.

    All points of an input are known; those that loops read point by point stay in the loops.
    """
    if dim not in node.domain or (node.domain[dim].mentions() - sizes.keys()):
        return 0
    r, is_merge = node.domain[dim], isinstance(node.op, Merge)
    lo, hi = evaluate(r.lo, sizes), evaluate(r.hi, sizes)
    end = _first_branch_end(node, r, sizes) if is_merge else hi
    if lo or end < fewest or (is_merge and end == hi):
        return 0
    if not is_merge and not _is_read_by_ranges(graph, node, dim):
        return 0
    starts = [x for x in first_demands(graph, dim, sizes).values() if lo < x <= end]
    cut = max(starts, default=end)  # what is first read there is not computed before
    return cut - cut % step


def _first_branch_end(node: Node, extent: Range, sizes: Mapping[str, int]) -> int:
    """The point up to which a merge takes its first branch only; 0 if there is none."""
    assert isinstance(node.op, Merge)
    when = node.op.when[0]
    if len(node.op.when) != 2 or symbols(when) - sizes.keys() != frozenset((extent.dim,)):
        return 0
    boxes = split_boxes(Domain((extent,)), when, sizes)
    ends = [evaluate(b.domain[extent.dim].hi, sizes) for b in boxes if b.where == TRUE]
    begun = len(boxes) == len(ends) == 1 and boxes[0].domain[extent.dim].lo == extent.lo
    return ends[0] if begun else 0


def _is_read_by_ranges(graph: Graph, node: Node, dim: str) -> bool:
    """Tell whether growing ranges read an input along a dim, and nothing made of it orders the dim.

    On a cycle, reads that include their own point impose no order: an equation that would need
    itself by them alone is refused, so that another dim orders it.
    """
    if not isinstance(node.op, Input):
        return False
    along = _readers_along(graph, node, dim)
    parts = components(along, lambda n: [a.name for a in graph[n].args if a.name in along])
    part_of = {name: k for k, part in enumerate(parts) for name in part}
    reads = [
        (part_of[n] == part_of[a.name], a.index[graph[a.name].domain.dims.index(dim)])
        for n in along
        for a in graph[n].args
        if a.name in along
    ]
    ordered = any(on_cycle and not _has_own_point(e, dim) for on_cycle, e in reads)
    return not ordered and any(isinstance(e, Slice) and dim in index_symbols(e) for _, e in reads)


def _has_own_point(index: Index, dim: str) -> bool:
    """Tell whether an index is t, or a range that t ends."""
    return index == Sym(dim) or (
        isinstance(index, Slice) and index.hi == lin([(Sym(dim), 1), (1, 1)])
    )


def _readers_along(graph: Graph, node: Node, dim: str) -> set[str]:
    """The equations over a dim that depend on `node`, without it."""
    out, todo = set[str](), [node.name]
    while todo:
        for n, _ in graph.readers[todo.pop()]:
            if dim in n.domain and n.name not in out:
                out.add(n.name)
                todo.append(n.name)
    return out


@dataclass
class _Peeling:
    """The points of a loop over `dim` before `cut`, at which the first branch of merge `m` holds.

    `m` may be an input instead. `points` are computed at once: nothing reads those from the cut on.
    """

    graph: Graph
    sizes: Mapping[str, int]
    m: Node
    dim: str
    cut: int
    points: int = 0  # 0: those before the cut
    head: dict[str, str] = field(default_factory=dict[str, str])  # equation -> its peeled points
    copies: dict[str, str] = field(default_factory=dict[str, str])  # of those that the loop reads
    padded_inputs: dict[Ref, Ref] = field(default_factory=dict[Ref, Ref])

    def __post_init__(self) -> None:
        self.points = self.points or self.cut
        prefix = self.graph.fresh_dim(Role.PREFIX, self.dim, self.points, taken=self.sizes)
        self.prefix, self.inner = prefix, prefix.name
        self.first = first_demands(self.graph, self.dim, self.sizes)
        self.sums = {s.before: s.name for s in running_sums(self.graph, self.dim)}
        self.cycle = self._dependents()
        self.early = {n for n in self.cycle if self.first.get(n, self.cut) < self.cut}
        members = self.early - {self.m.name}
        while wrong := {n for n in members if not self._is_unordered(self.graph[n], members)}:
            members -= wrong
        self.members = members

    def _dependents(self) -> set[str]:
        """The cycle of a merge, or the equations made of an input."""
        if isinstance(self.m.op, Input):
            return _readers_along(self.graph, self.m, self.dim)
        parts = components(self.graph.nodes, lambda n: [a.name for a in self.graph[n].args])
        return set(next(p for p in parts if self.m.name in p))

    def __str__(self) -> str:
        return f"{self.dim}: {self.cut} points at once for {len(self.members)} equations"

    def branch(self, node: Node) -> Ref | None:
        """The operand that a merge takes at all of the peeled points."""
        box = Domain((Range(self.dim, self.cut),))
        for k, a in enumerate(node.args):
            when = merge_condition(node, k)
            if when is not None and isl.always(when, box):
                return a
        return None

    def _is_unordered(self, node: Node, members: set[str]) -> bool:
        """Tell whether the peeled points read peeled points only, and in any order."""
        if not node.op.pure or isinstance(node.type, Tuple) or node.name in self.graph.outputs:
            return False
        if isinstance(node.op, Going):  # it ends the loop
            return False
        if node.name in self.sums:
            return self.sums[node.name] in members
        args = node.args
        if isinstance(node.op, Merge) and self.dim in node.op.mentions():
            one = self.branch(node)
            if one is None:
                return False
            args = (one,)
        return all(self._is_unordered_read(a, members) for a in args)

    def _is_unordered_read(self, ref: Ref, members: set[str]) -> bool:
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

    def is_worthwhile(self) -> bool:
        """Tell whether all products of the early points, and what they depend on, can be peeled.

        The merge must read what is known there, unlike a state that runs backward, x[t+1] below
        T-1.
        """
        if isinstance(self.m.op, Merge):
            known = self.branch(self.m)
            if known is None or known.name in self.cycle:
                return False
        products = {n for n in self.early if isinstance(self.graph[n].op, Einsum)}
        return bool(products) and products <= self.members

    def reads_whole_prefixes(self) -> bool:
        """Tell whether members read ranges from the first point on, so that one mask is enough.

        Running sums are no such reads.
        """
        read = [e for n in self.members for a in self.graph[n].args for e in a.slices]
        return not self.sums.keys() & self.members and all(
            e.lo == 0 and e.step == 1 for e in read if self.dim in index_symbols(e)
        )

    def largest_bytes(self) -> int:
        """The bytes of the largest value, at all peeled points."""
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

    def peeled(self) -> Graph:
        """The graph with the points peeled off."""
        members = self.graph.in_order(self.members)
        nodes = dict(self.graph.nodes)
        for n in members:
            self.peel(nodes, n)
        for name in filter(self.is_read_by_loop, members):
            n = self.graph[name]
            head = Ref(self.head[name], n.domain.identity)
            if evaluate(n.domain[self.dim].hi, self.sizes) <= self.cut:
                nodes[name] = replace(n, op=Copy(), args=(head,), locs=())
                continue
            rest, copy = fresh_name(f"{name}_rest", nodes), fresh_name(f"{name}_of", nodes)
            nodes[rest], self.copies[name] = replace(n, name=rest), copy
            part = n.domain.with_range(Range(self.dim, self.cut))
            nodes[copy] = Node(copy, Copy(), (head,), part, n.type, n.loc)
            t = Sym(self.dim)
            op = Merge(when=(compare("<", t, self.cut), compare(">=", t, self.cut)))
            args = (Ref(copy, n.domain.identity), Ref(rest, n.domain.identity))
            nodes[name] = Node(name, op, args, n.domain, n.type, n.loc)
        dims = chain(*((d, self.prefix) if d.name == self.dim else (d,) for d in self.graph.dims))
        graph = Graph(nodes, self.graph.outputs, tuple(dims)).live()
        return start_at(graph, self.dim, self.cut, self.sizes)

    def has_all_inputs(self, peeled: Graph) -> bool:
        """Tell whether all reads are inside their sources, also those of points past the cut."""
        return all(
            r.dim != self.dim
            or self.inner not in index_symbols(e)
            or (not isinstance(e, Slice) and evaluate(r.hi, self.sizes) >= self.points)
            for n in peeled.nodes.values()
            for a in n.args
            for e, r in zip(a.index, peeled[a.name].domain, strict=True)
            if self.points > self.cut and self.inner in n.domain
        )

    def only_last_sums_are_read(self, peeled: Graph) -> bool:
        """Tell whether of running sums only the value at the end of the peeled points is read."""
        first = first_demands(peeled, self.dim, self.sizes, self.cut)
        return all(first.get(s, self.cut) >= self.cut - 1 for s in self.sums.values())

    def without_unread_copies(self, peeled: Graph, step: int) -> Graph:
        """The graph in which only those points are copied that the loop reads, such as a window."""
        first, nodes = first_demands(peeled, self.dim, self.sizes, self.cut), dict(peeled.nodes)
        for name, copy in self.copies.items():
            lo = min(first[name], self.cut - 1)
            for x in (name, copy) if name in nodes else ():
                domain = peeled[x].domain
                part = replace(domain[self.dim], lo=lo - lo % step)
                nodes[x] = replace(peeled[x], domain=domain.with_range(part))
        return replace(peeled, nodes=nodes)

    def is_read_by_loop(self, name: str) -> bool:
        """Tell whether the rest of the loop reads peeled points of an equation."""
        for reader, k in self.graph.readers[name]:
            start = self.cut if reader.name in self.members else self.first.get(reader.name)
            ref = reader.args[k]
            at = first_read(self.graph, reader, k, ref, self.dim, self.sizes, start)
            if at is not None and at < self.cut:
                return True
        return False

    def peel(self, nodes: dict[str, Node], name: str) -> str:
        """Add an equation at its peeled points, over a dim of their own, and those it needs."""
        if name in self.head:
            return self.head[name]
        n = self.graph[name]
        if isinstance(n.op, Copy) and self.graph.is_identity(n.args[0]):
            self.head[name] = self.peel(nodes, n.args[0].name)
            return self.head[name]
        new = self.head[name] = fresh_name(f"{name}_head", nodes)
        nodes[new] = n  # the name is taken
        by: dict[str, Expr | int] = {self.dim: Sym(self.inner)}
        ranges = (Range(self.inner, self.points) if r.dim == self.dim else r for r in n.domain)
        domain, args, op = Domain(tuple(ranges)), n.args, n.op
        if isinstance(op, Merge) and self.dim in op.mentions() and name not in self.sums:
            one = self.branch(n)
            assert one is not None
            args, op = (one,), Merge(when=(all_of(),))
        reads = tuple(self.read(nodes, a, domain) for a in args)
        nodes[new] = Node(new, op.at(by), reads, domain, n.type.at(by), n.loc)
        return new

    def read(self, nodes: dict[str, Node], ref: Ref, within: Domain) -> Ref:
        """An operand at peeled points."""
        if ref.name == self.m.name and isinstance(self.m.op, Merge):
            known = self.branch(self.m)
            assert known is not None
            return self.read(nodes, known.at(ref.parts(self.m.domain)[0]), within)
        source, name = self.graph[ref.name], ref.name
        if self.dim in source.domain and (name in self.members or self.can_peel(ref)):
            name = self.peel(nodes, name)
        index = [
            replace(e, loose=True) if isinstance(e, Slice) and self.dim in index_symbols(e) else e
            for e in ref.index
        ]
        ref = Ref(name, tuple(index)).at({self.dim: Sym(self.inner)})
        mine = any(self.inner in index_symbols(e) for e in ref.index)
        if self.points > self.cut and mine and isinstance(source.op, Input):
            return self.padded_input(nodes, ref, within)
        return ref

    def padded_input(self, nodes: dict[str, Node], ref: Ref, within: Domain) -> Ref:
        """A read of an input; past the cut, where any value will do, of its last point."""
        if ref.slices:
            return ref
        if ref not in self.padded_inputs:
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
            self.padded_inputs[ref] = Ref(new, domain.identity)
        return self.padded_inputs[ref]

    def can_peel(self, ref: Ref) -> bool:
        """Tell whether an equation outside of the cycle can run over the peeled points, too."""
        n = self.graph[ref.name]
        if not n.op.pure or isinstance(n.op, (Input, Merge)) or isinstance(n.type, Tuple):
            return False
        e = ref.index[n.domain.dims.index(self.dim)]
        return (e == Sym(self.dim) or isinstance(e, Slice)) and all(
            self.dim not in self.graph[x.name].domain
            or self.can_peel(x)
            or (isinstance(self.graph[x.name].op, Input) and self.graph.is_identity(x))
            for x in n.args
        )


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether enough points of a loop with products are known before it."""
    chunk, fewest = cx.tuning.launch_steps or 1, cx.tuning.min_peeled_points
    nodes = graph.nodes.values()
    dims = {d for n in nodes if isinstance(n.op, Einsum) for d in n.domain.dims}
    every = ((m, d) for d in dims for m in nodes) if fewest else ()
    return any(_cut(graph, m, dim, cx.sizes, chunk, fewest) for m, dim in every)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Peel points that do not depend on the loop, such as those of a prompt, off it."""
    tuning = cx.tuning
    new, decided = split(
        graph, cx.sizes, tuning.min_peeled_points, cx.target.tile_rows, tuning.launch_steps
    )
    cx.is_split = bool(decided)
    cx.remark(*decided)
    return new


PEEL_INDEPENDENT = Pass("peel_independent", run, applies)
