"""Let the host gather the rows of shuffled samples, a few at a time, from an offloaded store.

    x[e,m,n] = take(flat, k[e,m,n]);  flat = reshape(o[0:B,0:T])
    →   found[e,m] = samples(o[0:B,0:T], k[e,m,0:N]);  x[e,m,n] = pick(item(found), at_=n)

No launch needs more than one point of `o` at once then.
"""

from __future__ import annotations

from collections.abc import Callable
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
from recurra.transforms.strip_mine.tiling import outer_dims
from recurra.transforms.vectorize.plan import free_dims


def _host_gather_of(
    graph: Graph, node: Node, cx: CompileContext, offloads: Callable[[str, int], bool]
) -> Gather | None:
    """The gather that an equation is, if it takes rows of a store that is to be offloaded."""
    g = _row_gather(graph, node, cx)
    if g is None or not graph.is_identity(g.numbers):
        return None
    source, over = graph[g.source.name], g.over(graph, cx.sizes)
    if not isinstance(source.type, Type) or over is None:
        return None
    nbytes = prod(r.size(cx.sizes) for r in over) * source.type.nbytes(cx.sizes)
    readers = graph.readers[source.name]
    by_point = all(_reads_one_point(graph, r, r.args[k], over[-1], cx) for r, k in readers)
    return g if by_point and offloads(source.name, nbytes) else None


def _row_gather(graph: Graph, node: Node, cx: CompileContext) -> Gather | None:
    """The gather of one row, among all points of some dims, that an equation is."""
    g = gather(graph, node) if isinstance(node.op, Take) and ",->" in node.op.labels else None
    return g if g is not None and g.over(graph, cx.sizes) is not None else None


def _reads_one_point(graph: Graph, node: Node, ref: Ref, last: Range, cx: CompileContext) -> bool:
    """Tell whether a read is of one point of a dim, or of all points for gathers of rows only."""
    e = ref.index[graph[ref.name].domain.dims.index(last.dim)]
    gathers = (_row_gather(graph, reader, cx) for reader, _ in graph.readers[node.name])
    return not isinstance(e, Slice) or None not in gathers


def _by_host(graph: Graph, node: Node, gather: Gather, own: list[Range]) -> Graph:
    """The graph in which the host gathers the rows of `node`, for all points of `own` at once."""
    k, row = gather.numbers, node.tensor
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
    new = [Node(call, op, args, outer, Tuple((rows,)), node.loc)]
    new.append(Node(f"{call}_0", Item(k=0), (Ref(call, outer.identity),), outer, rows, node.loc))
    for j, r in enumerate(own, 1):
        before, domain = new[-1], node.domain.without(*(x.dim for x in own[j:]))
        pick = Pick(axis=0, at_=lin([(Sym(r.dim), 1), (r.lo, -1)]))
        type_ = Type(row.dtype, before.tensor.shape[1:])
        name = node.name if r is own[-1] else f"{call}_{r.dim}"
        read = (Ref(before.name, before.domain.identity),)
        new.append(Node(name, pick, read, domain, type_, node.loc))
    nodes = dict[str, Node]()
    for name, x in graph.nodes.items():
        nodes |= {y.name: y for y in new} if name == node.name else {name: x}
    return replace(graph, nodes=nodes)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether samples are shuffled, and stores may go to slow memory."""
    shuffles = any(isinstance(n.op, Permutation) for n in graph.nodes.values())
    return shuffles and cx.offloads is not None


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Let the host gather shuffled samples of offloaded stores, all of a block at once."""
    if cx.offloads is None:
        return graph
    free = {*free_dims(graph, cx).all, *outer_dims(graph)}
    for n in list(graph.nodes.values()):
        g = _host_gather_of(graph, n, cx, cx.offloads)
        own = [r for r in n.domain if r.dim in free]
        if g is None or not own:
            continue
        # the dims that impose no order must count samples only
        mentioned = set[str]().union(*(index_symbols(e) for e in g.source.index))
        numbers = graph[g.numbers.name].domain
        if any(r.dim in mentioned or r.dim not in numbers for r in own):
            continue
        if fuel().burn("samples → taken by the host", n.name):
            graph = _by_host(graph, n, g, own)
            cx.remark(f"{n.name}: rows of {g.source.name}, taken by the host")
    return graph.live()


HOST_GATHER = Pass("host_gather", run, applies)
