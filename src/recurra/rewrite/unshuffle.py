"""unshuffle: who reads all samples, and sums over them, need not shuffle them first.

    k[n<N] = permutation(size=B*T, at_=n)         N = B·T
    x[n<N] = take(flat, k);  flat = reshape(o[0:B,0:T])
    s = sum(f(x)[0:N])                            →   s = sum(f(o)[0:B,0:T])

The dim of the samples becomes the dims that they are samples of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from recurra.ir.expr import TRUE, Sym, evaluate
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, full_length, index_symbols
from recurra.ir.types import Domain, Range, Type
from recurra.ops.control import Merge
from recurra.ops.indexing import Take
from recurra.ops.movement import Reshape
from recurra.ops.permutation import Permutation
from recurra.ops.reduction import Reduction
from recurra.ops.source import Input
from recurra.rewrite.compile_context import CompileContext, Pass
from recurra.rewrite.fuel import fuel


def unshuffle(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with such samples in the order they were made."""
    for p in list(graph.nodes.values()):
        if isinstance(p.op, Permutation):
            found = samples(graph, p, sizes)
            if found is not None and fuel().burn("all samples, shuffled → in order", p.name):
                graph = in_order(graph, found)
    return graph


@dataclass(frozen=True)
class Samples:
    """`dim` counts all points of `over`, in the order of permutation `name`."""

    name: str
    dim: str
    over: tuple[Range, ...]
    members: frozenset[str]
    taken: Mapping[str, Ref]  # take -> what it takes from, at the dims of `over`


def samples(graph: Graph, p: Node, sizes: Mapping[str, int]) -> Samples | None:
    """What a permutation shuffles, if each of its samples goes into sums only."""
    op = p.op
    assert isinstance(op, Permutation)
    if not isinstance(op.at_, Sym) or op.at_.name not in p.domain or op.bind:
        return None
    dim = op.at_.name
    r = p.domain[dim]
    size = evaluate(op.size, dict(sizes))
    if r.lo != 0 or r.size(sizes) != size:
        return None
    over: tuple[Range, ...] | None = None
    taken: dict[str, Ref] = {}
    for reader, k in graph.readers[p.name]:
        flat = flattened(graph, reader, k, sizes)
        if flat is None or (over is not None and flat[0] != over):
            return None
        over, taken[reader.name] = flat
    if over is None or prod(x.size(sizes) for x in over) != size:
        return None
    members = frozenset(n.name for n in graph.nodes.values() if dim in n.domain)
    for n in map(graph.__getitem__, members):
        if not _free(graph, n, dim, over, members, p.name):
            return None
        if not _summed(graph, n, dim, members, sizes):
            return None
    return Samples(p.name, dim, over, members, taken)


def flattened(
    graph: Graph, n: Node, k: int, sizes: Mapping[str, int]
) -> tuple[tuple[Range, ...], Ref] | None:
    """The dims that a take takes from, one counted in the other, and the read at one point."""
    if not isinstance(n.op, Take) or k != 1 or n.op.labels[0] != n.op.axis:
        return None
    if ",->" not in n.op.labels or not graph.is_identity(n.args[0]):
        return None
    flat = graph[n.args[0].name]
    if not isinstance(flat.op, Reshape):
        return None
    (a,) = flat.args
    x = graph[a.name]
    if not isinstance(x.type, Type) or not isinstance(flat.type, Type):
        return None
    if flat.type.shape[1:] != x.type.shape:
        return None
    over: list[Range] = []
    index: list[Index] = []
    for e, r in zip(a.index, x.domain, strict=True):
        if isinstance(e, Slice):
            if not full_length(e, r, sizes):
                return None
            over.append(r)
        index.append(r.sym if isinstance(e, Slice) else e)
    return (tuple(over), Ref(x.name, tuple(index))) if over else None


def _free(
    graph: Graph,
    n: Node,
    dim: str,
    over: tuple[Range, ...],
    members: frozenset[str],
    shuffled: str,
) -> bool:
    """Is it the same for every sample, whatever its number?"""
    mentions = n.op.mentions() if n.name != shuffled else set[str]()
    if isinstance(n.type, Type):
        mentions |= n.type.mentions()
    if not n.op.pure or isinstance(n.op, Input) or n.name in graph.outputs:
        return False
    if mentions & {dim, *(r.dim for r in over)}:
        return False
    outside = (a for a in n.args if a.name not in members)
    known = any(dim in index_symbols(e) for a in outside for e in a.index)
    return not known and not any(r.dim in n.domain for r in over)


def _summed(
    graph: Graph, n: Node, dim: str, members: frozenset[str], sizes: Mapping[str, int]
) -> bool:
    """Is it summed over all samples where others than samples read it?"""
    at = n.domain.dims.index(dim)
    for reader, k in graph.readers[n.name]:
        a = reader.args[k]
        e = a.index[at]
        if reader.name in members:
            fits = e == Sym(dim)
        else:
            every = isinstance(e, Slice) and full_length(e, n.domain[dim], sizes)
            fits = every and len(a.slices) == 1 and _sums(reader)
        if not fits:
            return False
    return True


def _sums(n: Node) -> bool:
    """Does it join what its first axis holds, in any order?"""
    return isinstance(n.op, Reduction) and 0 in n.op.axes and bool(n.op.monoid)


def in_order(graph: Graph, s: Samples) -> Graph:
    """The graph with the dims of the samples instead of their number."""
    order = {d: k for k, d in enumerate(graph.declared)}

    def spread(d: Domain) -> Domain:
        ranges = [x for r in d for x in (s.over if r.dim == s.dim else (r,))]
        return Domain(tuple(sorted(ranges, key=lambda r: order[r.dim])))

    def read(a: Ref) -> Ref:
        if a.name not in s.members:
            return a
        old = dict(zip(graph[a.name].domain.dims, a.index, strict=True))
        e = old.pop(s.dim)
        every = {r.dim: Slice(r.lo, r.hi) if isinstance(e, Slice) else r.sym for r in s.over}
        return Ref(a.name, tuple({**old, **every}[d] for d in spread(graph[a.name].domain).dims))

    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        if n.name in s.taken:
            n = replace(n, op=Merge(when=(TRUE,)), args=(s.taken[n.name],))
        elif isinstance(n.op, Reduction):
            (a,) = n.args
            if a.name in s.members and a.slices and n.name not in s.members:
                more = len(s.over) - 1
                axes = (*range(len(s.over)), *(k + more for k in n.op.axes if k))
                n = replace(n, op=replace(n.op, axes=axes))
        args = n.args if n.name in s.taken else tuple(map(read, n.args))
        domain = spread(n.domain) if n.name in s.members else n.domain
        nodes[n.name] = replace(n, args=args, domain=domain)
    return Graph(nodes, graph.outputs, graph.dims).live()


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether anything is shuffled."""
    return any(isinstance(n.op, Permutation) for n in graph.nodes.values())


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Take samples that are all summed in the order in which they were made."""
    return unshuffle(graph, cx.sizes)


UNSHUFFLE = Pass("unshuffle", run, applies)
