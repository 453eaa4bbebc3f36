"""Values that nothing reads before a point of a loop are computed from there on.

   logits[t<T] = f(x);  next[t<T] = merge(0, logits, when=(t < 7, t >= 7))
→  logits[7<=t<T] = f(x)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.analysis.demanded_points import demanded
from recurra.ir.expr import TRUE, Expr, Product, Sym, compare, evaluate, substitute, symbols, walk
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.types import Domain
from recurra.polyhedral.boxes import split_boxes
from recurra.polyhedral.extent import varies
from recurra.polyhedral.interval import box_of, narrow, span


def narrowed(graph: Graph, dim: str, at: int, sizes: Mapping[str, int]) -> Graph:
    """The graph whose equations start at a point of `dim`, if none before it is read.

    They start at one point, so that the loop over `dim` runs all of them from there on.
    """
    first = demands(graph, dim, sizes, at)
    nodes = dict(graph.nodes)
    for name, lo in first.items():
        n = graph[name]
        if lo >= at > evaluate(n.domain[dim].lo, sizes):
            late = n.domain.with_range(replace(n.domain[dim], lo=at))
            nodes[name] = replace(n, domain=late)
    return Graph(nodes, graph.outputs, graph.dims).live()


def demands(
    graph: Graph, dim: str, sizes: Mapping[str, int], at: int | None = None
) -> dict[str, int]:
    """The first point along `dim` at which each equation that has it is read, or given away.

    With `at`, by readers that start there, if they may start later.
    """
    nodes = graph.nodes.values()
    have = {n.name: n for n in nodes if dim in n.domain and not varies(n.domain[dim], sizes)}
    begun = {} if at is None else dict.fromkeys(have, compare(">=", Sym(dim), at))
    asked = demanded(graph, sizes, already=begun, ends=False)
    out: dict[str, int] = {}
    for name, n in have.items():
        parts = split_boxes(n.domain, asked.get(name, TRUE) if n.op.pure else TRUE, sizes)
        never = evaluate(n.domain[dim].hi, sizes) - 1
        out[name] = min((evaluate(b.domain[dim].lo, sizes) for b in parts), default=never)
    return out


def least(
    graph: Graph,
    node: Node,
    index: int,
    ref: Ref,
    dim: str,
    sizes: Mapping[str, int],
    first: int | None,
) -> int | None:
    """The least point along `dim` that an operand asks for, of `node` from its point `first` on."""
    e = ref.index[graph[ref.name].domain.dims.index(dim)]
    start = e.lo if isinstance(e, Slice) else e
    if isinstance(start, Expr) and any(isinstance(x, Product) for x in walk(start)):
        return 0
    late = (r if first is None or r.dim != dim else replace(r, lo=first) for r in node.domain)
    box, when = box_of(Domain(tuple(late)), sizes), merge_condition(node, index)
    if when is not None and box is not None:
        box = narrow(box, substitute(when, sizes))
    if box is None:
        return None
    start = substitute(start, sizes)
    return span(start, box)[0] if symbols(start) <= box.keys() else 0
