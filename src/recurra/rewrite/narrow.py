"""narrow: what nothing reads before a point of a loop is computed from there on.

   logits[t<T] = f(x);  next[t<T] = merge(0, logits, when=(t < 7, t >= 7))
→  logits[7<=t<T] = f(x)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.ir.expr import Expr, Prod, evaluate, substitute, symbols, walk
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.types import Domain
from recurra.ops.source import Input
from recurra.sets.extent import varies
from recurra.sets.interval import Box, narrow, span


def narrowed(graph: Graph, dim: str, at: int, sizes: Mapping[str, int]) -> Graph:
    """The graph whose equations start at a point of `dim`, if none before it is read.

    They start at one point, so that the loop over `dim` runs all of them from there on.
    """
    first = demands(graph, dim, sizes, at)
    nodes = dict(graph.nodes)
    for name, lo in first.items():
        n = graph[name]
        if lo >= at > evaluate(n.domain[dim].lo, sizes):
            ranges = (replace(r, lo=at) if r.dim == dim else r for r in n.domain)
            nodes[name] = replace(n, domain=Domain(tuple(ranges)))
    return Graph(nodes, graph.outputs, graph.dims).live()


def demands(
    graph: Graph, dim: str, sizes: Mapping[str, int], at: int | None = None
) -> dict[str, int]:
    """The first point along `dim` at which each equation that has it is read, or given away.

    With `at`, by readers that start there, if they may start later.
    """
    have = {n.name: n for n in graph.nodes.values() if dim in n.domain}
    ends = {k: evaluate(n.domain[dim].hi, sizes) for k, n in have.items() if known(n, dim, sizes)}
    start = {k: evaluate(have[k].domain[dim].lo, sizes) for k in ends}
    out = {k: start[k] if fixed(graph, have[k]) else ends[k] - 1 for k in ends}
    while True:
        before = dict(out)
        for n in graph.nodes.values():
            for k, a in enumerate(n.args):
                if a.name in out:
                    first = out.get(n.name)
                    if first is not None and at is not None:
                        first = min(first, at)
                    lo = least(graph, n, k, a, dim, sizes, first)
                    if lo is not None:
                        out[a.name] = max(start[a.name], min(out[a.name], lo))
        if out == before:
            return out


def known(n: Node, dim: str, sizes: Mapping[str, int]) -> bool:
    return not varies(n.domain[dim], sizes)


def fixed(graph: Graph, n: Node) -> bool:
    return n.name in graph.outputs or isinstance(n.op, Input) or not n.op.pure


def least(
    graph: Graph,
    n: Node,
    k: int,
    a: Ref,
    dim: str,
    sizes: Mapping[str, int],
    first: int | None,
) -> int | None:
    """The least point along `dim` that an operand asks for, of `n` from its point `first` on."""
    e = a.index[graph[a.name].domain.dims.index(dim)]
    start = e.lo if isinstance(e, Slice) else e
    if isinstance(start, Expr) and any(isinstance(x, Prod) for x in walk(start)):
        return 0
    box = box_of(n.domain, dim, sizes, first)
    when = merge_condition(n, k)
    if when is not None and box is not None:
        box = narrow(box, substitute(when, sizes))
    if box is None:
        return None
    start = substitute(start, sizes)
    return span(start, box)[0] if symbols(start) <= box.keys() else 0


def box_of(domain: Domain, dim: str, sizes: Mapping[str, int], first: int | None) -> Box | None:
    """The points of a domain as a box around them."""
    box: dict[str, tuple[int, int]] = {}
    for r in domain:
        lo = span(substitute(r.lo, sizes), box)[0]
        hi = span(substitute(r.hi, sizes), box)[1] - 1
        lo = first if r.dim == dim and first is not None else lo
        if lo > hi:
            return None
        box[r.dim] = (lo, hi)
    return box
