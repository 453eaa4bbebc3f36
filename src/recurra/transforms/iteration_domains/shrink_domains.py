"""Start equations at the first point of a loop that is read.

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


def start_at(graph: Graph, dim: str, point: int, sizes: Mapping[str, int]) -> Graph:
    """The graph in which equations start at a point of `dim`, if none before it is read.

    All start at the same point, so that the loop over `dim` runs them together.
    """
    nodes = dict(graph.nodes)
    for name, lo in first_demands(graph, dim, sizes, point).items():
        n = graph[name]
        if lo >= point > evaluate(n.domain[dim].lo, sizes):
            nodes[name] = replace(n, domain=n.domain.with_range(replace(n.domain[dim], lo=point)))
    return replace(graph, nodes=nodes).live()


def first_demands(
    graph: Graph, dim: str, sizes: Mapping[str, int], start: int | None = None
) -> dict[str, int]:
    """Map each equation over `dim` to the first point at which it is read or has an effect.

    With `start`, readers that may start there are taken to do so.
    """
    nodes = graph.nodes.values()
    have = {n.name: n for n in nodes if dim in n.domain and not varies(n.domain[dim], sizes)}
    begun = {} if start is None else dict.fromkeys(have, compare(">=", Sym(dim), start))
    conditions = demanded(graph, sizes, already=begun, ends=False)
    out: dict[str, int] = {}
    for name, n in have.items():
        parts = split_boxes(n.domain, conditions.get(name, TRUE) if n.op.pure else TRUE, sizes)
        never = evaluate(n.domain[dim].hi, sizes) - 1
        out[name] = min((evaluate(b.domain[dim].lo, sizes) for b in parts), default=never)
    return out


def first_read(
    graph: Graph,
    node: Node,
    operand: int,
    ref: Ref,
    dim: str,
    sizes: Mapping[str, int],
    start: int | None,
) -> int | None:
    """The first point along `dim` that an operand of `node` reads, from the point `start` on.

    None if it reads nothing.
    """
    e = ref.index[graph[ref.name].domain.dims.index(dim)]
    lo = e.lo if isinstance(e, Slice) else e
    if isinstance(lo, Expr) and any(isinstance(x, Product) for x in walk(lo)):
        return 0
    late = (r if start is None or r.dim != dim else replace(r, lo=start) for r in node.domain)
    box, when = box_of(Domain(tuple(late)), sizes), merge_condition(node, operand)
    if when is not None and box is not None:
        box = narrow(box, substitute(when, sizes))
    if box is None:
        return None
    lo = substitute(lo, sizes)
    return span(lo, box)[0] if symbols(lo) <= box.keys() else 0
