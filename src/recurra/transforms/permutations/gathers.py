"""Gathers: rows of a source taken by the numbers of their points, and rewrites of them.

    k[n<N] = permutation(size=B*T, at_=n)         N = B·T
    x[n<N] = take(flat, k);  flat = reshape(o[0:B,0:T])
    s = sum(f(x)[0:N])                            →   s = sum(f(o)[0:B,0:T])

A reader that sums over all samples need not shuffle them first: the dim of the samples becomes the
dims that they are samples of.

    flat = reshape(transpose(o, order=(1,0,2)));  x = take(flat, k)
    →   flat = reshape(o);  x = take(flat, renumber(k, sizes=(T,B), order=(1,0)))

Samples are numbered by their place in memory, so that their source is not transposed. Batch axes
lie inside of those of steps, but a program counts them as the slower ones. Rows whose own axes are
transposed stay as they are: they are not contiguous. What the host gathers (`host_gather`) is
renumbered, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from recurra.ir.expr import TRUE, Sym, evaluate
from recurra.ir.graph import Graph, Node, Ref, Slice, full_length, index_symbols
from recurra.ir.types import Domain, Range, Type
from recurra.ops.control import Merge
from recurra.ops.indexing import Take
from recurra.ops.movement import Reshape, Transpose
from recurra.ops.permutation import Permutation
from recurra.ops.reduction import Reduction
from recurra.ops.sampled_rows import Renumber, Samples
from recurra.ops.source import Input
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.strip_mine.tiled_dims import reads_own_or_reduces


@dataclass(frozen=True)
class Gather:
    """Rows of `source`, [*points, *row], at the points that `numbers` number.

    They count its first axes in `order`, of which the last one is the fastest.
    """

    source: Ref
    order: tuple[int, ...]
    numbers: Ref

    @property
    def moved(self) -> tuple[int, ...]:
        """The order of the axes that are counted; () if it is their own."""
        return () if self.order == tuple(range(len(self.order))) else self.order

    def over(self, graph: Graph, sizes: Mapping[str, int]) -> tuple[Range, ...] | None:
        """The dims of which all points are numbered; None if others are."""
        pairs = zip(self.source.index, graph[self.source.name].domain, strict=True)
        sliced = [(e, r) for e, r in pairs if isinstance(e, Slice)]
        if len(sliced) != len(self.order) or not all(full_length(e, r, sizes) for e, r in sliced):
            return None
        return tuple(r for _, r in sliced)

    def row(self, graph: Graph) -> Ref:
        """The read at one point of those dims."""
        pairs = zip(self.source.index, graph[self.source.name].domain, strict=True)
        index = tuple(r.sym if isinstance(e, Slice) else e for e, r in pairs)
        return Ref(self.source.name, index)


def gather(graph: Graph, node: Node) -> Gather | None:
    """Return the gather that an equation is, if it is one."""
    match node.op:
        case Samples(order=order):
            source, numbers = node.args
            ranks = (len(graph.read_type(a).shape) for a in (numbers, source))
            return Gather(source, order or tuple(range(node.op.lead(*ranks))), numbers)
        case Take(axis=axis, labels=labels) if labels[0] == axis and graph.is_identity(
            node.args[0]
        ):
            flat, numbers = graph[node.args[0].name], node.args[1]
            if not isinstance(flat.op, Reshape):
                return None
            (source,) = flat.args
            shape, row = graph.read_type(source).shape, flat.type.shape[1:]
            points = len(shape) - len(row)
            if points < 1 or shape[points:] != row:
                return None
            return Gather(source, tuple(range(points)), numbers)
        case _:
            return None


def untransposed(graph: Graph, gather: Gather) -> Gather:
    """Return the gather from the operand of a transpose of points, if that is the source."""
    moved, points = graph[gather.source.name], len(gather.order)
    if not isinstance(moved.op, Transpose) or not graph.is_identity(gather.source):
        return gather
    to = moved.op.order
    if to[points:] != tuple(range(points, len(to))):
        return gather
    return Gather(moved.args[0], tuple(to[a] for a in gather.order), gather.numbers)


def number_by_layout(graph: Graph) -> Graph:
    """Return the graph whose samples are numbered by their place in memory."""
    for n in list(graph.nodes.values()):
        read = gather(graph, n)
        if read is None or (g := untransposed(graph, read)) == read:
            continue
        if isinstance(n.op, Samples):
            new = replace(n, op=replace(n.op, order=g.order), args=(g.source, g.numbers))
            graph = replace(graph, nodes={**graph.nodes, n.name: new})
        elif fuel().burn("samples → counted as they lie", n.name):
            graph = _renumbered(graph, n, g)
    return graph.live()


def _renumbered(graph: Graph, node: Node, gather: Gather) -> Graph:
    """The graph in which a take reads the untransposed source, by other numbers."""
    flat = graph[node.args[0].name]
    sizes = graph.read_type(gather.source).shape[: len(gather.order)]
    op, type_ = Renumber(sizes=sizes, order=gather.order), graph.read_type(gather.numbers)
    number = Node("place", op, (gather.numbers,), node.domain, type_, node.loc)
    new = [
        _equal_or_new(graph, x)
        for x in (replace(flat, name=f"{flat.name}_lies", args=(gather.source,)), number)
    ]
    args = tuple(Ref(x.name, x.domain.identity) for x in new)
    nodes = dict[str, Node]()
    for name, x in graph.nodes.items():
        before = new if name == node.name else ()
        nodes |= {y.name: y for y in before if y.name not in nodes}
        nodes[name] = replace(node, args=args) if name == node.name else x
    return replace(graph, nodes=nodes)


def _equal_or_new(graph: Graph, node: Node) -> Node:
    """The node of the graph that differs by its name alone, or this one with a new name."""
    same = (x for x in graph.nodes.values() if replace(x, name=node.name, loc=node.loc) == node)
    return next(same, replace(node, name=graph.fresh(node.name)))


def unshuffle(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph without shuffles of samples that are all summed."""
    for p in list(graph.nodes.values()):
        if isinstance(p.op, Permutation):
            found = all_samples(graph, p, sizes)
            if found is not None and fuel().burn("all samples, shuffled → in order", p.name):
                graph = remove_shuffle(graph, found)
    return graph


@dataclass(frozen=True)
class AllSamples:
    """`dim` counts all points of `over`, in the order of a permutation.

    `taken` maps each take to what it reads, at the dims of `over`.
    """

    dim: str
    over: tuple[Range, ...]
    members: frozenset[str]
    taken: Mapping[str, Ref]


def all_samples(graph: Graph, node: Node, sizes: Mapping[str, int]) -> AllSamples | None:
    """Return what a permutation shuffles, if each of its samples goes into sums only."""
    op = node.op
    assert isinstance(op, Permutation)
    if not isinstance(op.at_, Sym) or op.at_.name not in node.domain or op.bind:
        return None
    dim = op.at_.name
    r = node.domain[dim]
    size = evaluate(op.size, dict(sizes))
    if r.lo != 0 or r.size(sizes) != size:
        return None
    over: tuple[Range, ...] | None = None
    taken: dict[str, Ref] = {}
    for reader, k in graph.readers[node.name]:
        g = gather(graph, reader)
        points = g.over(graph, sizes) if g is not None and k == 1 else None
        if g is None or points is None or (over is not None and points != over):
            return None
        over, taken[reader.name] = points, g.row(graph)
    if over is None or prod(x.size(sizes) for x in over) != size:
        return None
    members = frozenset(n.name for n in graph.nodes.values() if dim in n.domain)
    dims = {dim, *(x.dim for x in over)}
    for n in map(graph.__getitem__, members):
        if not _is_alike(graph, n, dim, dims, members, n.name == node.name):
            return None
        outside = (r.args[k] for r, k in graph.readers[n.name] if r.name not in members)
        alone = all(len(a.slices) == 1 for a in outside)
        if not alone or not reads_own_or_reduces(graph, n, dim, members, sizes):
            return None
    return AllSamples(dim, over, members, taken)


def _is_alike(
    graph: Graph, node: Node, dim: str, dims: set[str], members: frozenset[str], shuffles: bool
) -> bool:
    """Tell whether an equation does the same for every sample, whatever its number."""
    mentions = set(node.type.mentions()) if isinstance(node.type, Type) else set[str]()
    mentions |= set[str]() if shuffles else node.op.mentions()
    if not node.op.pure or isinstance(node.op, Input) or node.name in graph.outputs:
        return False
    outside = (a for a in node.args if a.name not in members)
    known = any(dim in index_symbols(e) for a in outside for e in a.index)
    return not known and not mentions & dims and not dims - {dim} & set(node.domain.dims)


def remove_shuffle(graph: Graph, samples: AllSamples) -> Graph:
    """Return the graph with the dims of the samples instead of their number."""
    order = {d: k for k, d in enumerate(graph.declared)}

    def spread(domain: Domain) -> Domain:
        ranges = [x for r in domain for x in (samples.over if r.dim == samples.dim else (r,))]
        return Domain(tuple(sorted(ranges, key=lambda r: order[r.dim])))

    def read(ref: Ref) -> Ref:
        if ref.name not in samples.members:
            return ref
        index = dict(zip(graph[ref.name].domain.dims, ref.index, strict=True))
        sliced = isinstance(index.pop(samples.dim), Slice)
        index |= {r.dim: Slice(r.lo, r.hi) if sliced else r.sym for r in samples.over}
        return Ref(ref.name, tuple(index[d] for d in spread(graph[ref.name].domain).dims))

    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        args = tuple(map(read, n.args))
        if n.name in samples.taken:
            n, args = replace(n, op=Merge(when=(TRUE,))), (samples.taken[n.name],)
        elif isinstance(n.op, Reduction) and n.name not in samples.members:
            (a,) = n.args
            if a.name in samples.members and a.slices:
                count = len(samples.over)
                axes = (*range(count), *(k + count - 1 for k in n.op.axes if k))
                n = replace(n, op=replace(n.op, axes=axes))
        domain = spread(n.domain) if n.name in samples.members else n.domain
        nodes[n.name] = replace(n, args=args, domain=domain)
    return replace(graph, nodes=nodes).live()
