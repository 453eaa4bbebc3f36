"""Shuffled samples of what is to be offloaded are taken by the host, a few rows of it.

    x[e,m,n] = take(flat, k[e,m,n]);  flat = reshape(o[0:B,0:T])
    →   found[e,m] = samples(o[0:B,0:T], k[e,m,0:N]);  x[e,m,n] = pick(item(found), at_=n)

Then no launch needs more than one point of `o` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import prod

from recurra.ir.expr import Sym, lin
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.types import Range, Tuple, Type
from recurra.ops.control import Item
from recurra.ops.indexing import Pick, Take
from recurra.ops.permutation import Permutation
from recurra.ops.sampled_rows import FUNCTION, Samples
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.permutations.gathers import Gather, gather
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.strip_mine.tile import outer_dims
from recurra.transforms.vectorize.plan import free_dims

Wanted = Callable[[str, int], bool]


def fetch(
    graph: Graph, sizes: Mapping[str, int], batch: Collection[str], wanted: Wanted
) -> tuple[Graph, list[str]]:
    """The graph, and what the host takes, a line each. `batch`: dims that order nothing.

    It takes rows of what is `wanted`, by its name and bytes.
    """
    told: list[str] = []
    for n in list(graph.nodes.values()):
        g = _host_gather_of(graph, n, sizes, wanted)
        own = [r for r in n.domain if r.dim in batch]
        if g is None or not _numbered(graph, g, own):
            continue
        if fuel().burn("samples → taken by the host", n.name):
            graph = _by_host(graph, n, g, own)
            told.append(f"{n.name}: rows of {g.source.name}, taken by the host")
    return graph.live() if told else graph, told


def _numbered(graph: Graph, gather: Gather, own: list[Range]) -> bool:
    """Do all dims that order nothing count samples only?"""
    known = set[str]().union(*(index_symbols(e) for e in gather.source.index))
    numbers = graph[gather.numbers.name].domain
    return bool(own) and all(r.dim in numbers and r.dim not in known for r in own)


def _host_gather_of(
    graph: Graph, node: Node, sizes: Mapping[str, int], wanted: Wanted
) -> Gather | None:
    """Return what an equation gathers, if that is one of each point of what is to be offloaded."""
    g = _points(graph, node, sizes)
    if g is None or not graph.is_identity(g.numbers):
        return None
    of, over = graph[g.source.name], g.over(graph, sizes)
    if not isinstance(of.type, Type) or over is None:
        return None
    nbytes = prod(r.size(sizes) for r in over) * of.type.nbytes(sizes)
    one = all(_one(graph, reader, k, over[-1], sizes) for reader, k in graph.readers[of.name])
    return g if one and wanted(of.name, nbytes) else None


def _points(graph: Graph, node: Node, sizes: Mapping[str, int]) -> Gather | None:
    """Return what an equation takes one row of, of all points of some dims."""
    g = gather(graph, node) if isinstance(node.op, Take) and ",->" in node.op.labels else None
    return g if g is not None and g.over(graph, sizes) is not None else None


def _one(graph: Graph, node: Node, index: int, last: Range, sizes: Mapping[str, int]) -> bool:
    """Does a reader read one point of a dim at a time, or is it there for samples only?"""
    a = node.args[index]
    e = dict(zip(graph[a.name].domain.dims, a.index, strict=True))[last.dim]
    takes = (_points(graph, reader, sizes) for reader, _ in graph.readers[node.name])
    return not isinstance(e, Slice) or None not in takes


def _by_host(graph: Graph, node: Node, gather: Gather, own: list[Range]) -> Graph:
    """The graph with the rows that `node` takes read by the host, its `own` dims at once."""
    k, row = gather.numbers, node.type
    assert isinstance(row, Type)
    every = {r.dim: Slice(r.lo, r.hi) for r in own}
    numbers = tuple(every.get(d, Sym(d)) for d in graph[k.name].domain.dims)
    outer = node.domain.without(*every)
    rows = Type(row.dtype, (*(lin([(r.hi, 1), (r.lo, -1)]) for r in own), *row.shape))
    op = Samples(
        fn=FUNCTION,
        results=((rows.dtype, rows.shape),),
        batch_dims=tuple(every),
        order=gather.moved,
    )
    call = graph.fresh(f"{node.name}_found")
    args = (gather.source, Ref(k.name, numbers))
    made = [Node(call, op, args, outer, Tuple((rows,)), node.loc)]
    made.append(Node(f"{call}_0", Item(k=0), (Ref(call, outer.identity),), outer, rows, node.loc))
    for j, r in enumerate(own, 1):
        before, domain = made[-1], node.domain.without(*(x.dim for x in own[j:]))
        pick = Pick(axis=0, at_=lin([(Sym(r.dim), 1), (r.lo, -1)]))
        type_ = Type(row.dtype, before.tensor.shape[1:])
        name = node.name if r is own[-1] else f"{call}_{r.dim}"
        read = (Ref(before.name, before.domain.identity),)
        made.append(Node(name, pick, read, domain, type_, node.loc))
    nodes = dict[str, Node]()
    for name, x in graph.nodes.items():
        nodes |= {y.name: y for y in made} if name == node.name else {name: x}
    return replace(graph, nodes=nodes)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether samples are shuffled, and stores may go to slow memory."""
    shuffles = any(isinstance(n.op, Permutation) for n in graph.nodes.values())
    return shuffles and cx.offloads is not None


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Have the host take shuffled samples of what is to be offloaded, of blocks all at once."""
    if cx.offloads is None:
        return graph
    dims = {*free_dims(graph, cx).all, *outer_dims(graph)}
    new, taken = fetch(graph, cx.sizes, dims, cx.offloads)
    cx.remark(*taken)
    return new


HOST_GATHER = Pass("host_gather", run, applies)
