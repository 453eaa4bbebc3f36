"""Remove dims of one point, such as that of a single epoch.

    w[i<I,e<E] = merge(c, w_next[i,e-1], w_next[i-1,E-1], ..)   E = 1   →   w[i<I] = merge(c, ..)

Learning is then over the same points as acting, and what both compute is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.ir.expr import TRUE, Expr, Sym, substitute
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, full_length, index_at
from recurra.ir.op import LETTERS
from recurra.ir.types import Domain, Range
from recurra.ops.control import Call, Merge
from recurra.ops.movement import Expand
from recurra.ops.source import Input
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.vectorize.plan import ordered_dims

Points = dict[str, Expr | int]


def without_unit_dims(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph without dims of one point; equations read each other at that point.

    An output keeps its dims: it is a copy along them.
    """
    law = "a dim of one point → none"
    gone = {d: r for d, r in _unit_dims(graph, sizes).items() if fuel().burn(law, d)}
    if not gone:
        return graph
    g = Rewriting({}, (), graph.dims, sizes)
    at: Points = {d: r.lo for d, r in gone.items()}
    ends = (r.hi.name for r in gone.values() if isinstance(r.hi, Sym))
    by: Points = {**at, **{name: sizes[name] for name in ends}}
    for n in graph.nodes.values():
        g.put(_moved(n, at, by))
    for n in graph.nodes.values():
        args = tuple(_read(g, graph, n, a, at, by) for a in n.args)
        g.put(replace(g[n.name], args=args))
    outputs = tuple(_with_old_dims(g, graph[o]) for o in graph.outputs)
    return Graph(g.nodes, outputs, graph.dims)


def _unit_dims(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Range]:
    """The dims of one point along which something recurs, without the outermost of them.

    Host functions and inputs keep their dims, which the outside knows; so do equations over more or
    fewer points than a dim has, b<B+1, and branches that read all of them.
    """
    ranges = [d.range for d in graph.dims if not d.range.mentions() - sizes.keys()]
    ones = {r.dim: r for r in ranges if r.size(sizes) == 1}
    if not ones:
        return {}
    ordered = ordered_dims(graph)
    found = {d: ones[d] for d in [x for x in ordered if ordered[x]][1:] if d in ones}
    for n in graph.nodes.values():
        fixed = isinstance(n.op, (Call, Input))
        own = [(Slice(r.lo, r.hi), r.dim, fixed) for r in n.domain]
        read = [
            (e, r.dim, isinstance(n.op, Merge) or e.pad is not None)
            for a in n.args
            for e, r in zip(a.index, graph[a.name].domain, strict=True)
            if isinstance(e, Slice)
        ]
        for e, dim, kept in (*own, *read):
            if dim in found and (kept or not full_length(e, found[dim], sizes)):
                del found[dim]
    return found


def _moved(node: Node, at: Points, by: Points) -> Node:
    """An equation at the points `at`, with the reads that it had."""
    if isinstance(node.op, Input):  # as the caller gives it, also where another dim has its bound
        return node
    domain = Domain(
        tuple(
            Range(r.dim, substitute(r.hi, by), substitute(r.lo, by))
            for r in node.domain
            if r.dim not in at
        )
    )
    type_ = node.type.at(by)
    return replace(node, op=node.op.at(by), domain=domain, type=type_)


def _read(rewriting: Rewriting, graph: Graph, node: Node, ref: Ref, at: Points, by: Points) -> Ref:
    """A read without those dims; along each axis that was a slice of one it is expanded."""
    pairs = list(zip(ref.index, graph[ref.name].domain.dims, strict=True))
    index: tuple[Index, ...] = tuple(index_at(e, by) for e, d in pairs if d not in at)
    gone = [d in at for e, d in pairs if isinstance(e, Slice)]
    read = Ref(ref.name, index)
    if not any(gone):
        return read
    axes = LETTERS[: len(gone) + len(graph[ref.name].type.shape)]
    rest = "".join(c for k, c in enumerate(axes) if k >= len(gone) or not gone[k])
    op = Expand(labels=f"{rest}->{axes}", sizes=(1,) * sum(gone))
    rewriting.loc = node.loc
    return rewriting.emit(op, (read,), rewriting[node.name].domain, f"{ref.name}_one")


def _with_old_dims(graph: Rewriting, node: Node) -> str:
    """The name of an output over all of the dims that it had."""
    if graph[node.name].domain.dims == node.domain.dims:
        return node.name
    name, args = graph.fresh(node.name), (graph.read(node.name),)
    graph.put(Node(name, Merge(when=(TRUE,)), args, node.domain, node.type, node.loc))
    return name
