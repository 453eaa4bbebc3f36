"""narrow: what nothing reads before a point of a loop is computed from there on.

   logits[t<T] = f(x);  next[t<T] = merge(0, logits, when=(t < 7, t >= 7))
→  logits[7<=t<T] = f(x)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.analysis.demand import demanded
from recurra.ir.expr import TRUE, Expr, Prod, Sym, compare, evaluate, substitute, symbols, walk
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.types import Domain
from recurra.ops.source import Input
from recurra.sets.boxes import split_boxes
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
    have = {n.name: n for n in graph.nodes.values() if dim in n.domain and known(n, dim, sizes)}
    begun = {} if at is None else dict.fromkeys(have, compare(">=", Sym(dim), at))
    asked = demanded(graph, sizes, already=begun, ends=False)
    out: dict[str, int] = {}
    for name, n in have.items():
        box = [b.domain[dim] for b in split_boxes(n.domain, asked.get(name, TRUE), sizes)]
        start, end = evaluate(n.domain[dim].lo, sizes), evaluate(n.domain[dim].hi, sizes)
        lo = min((evaluate(r.lo, sizes) for r in box), default=end - 1)
        out[name] = start if fixed(graph, n) else lo
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
