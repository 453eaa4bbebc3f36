"""Equations to statements: every branch of a definition becomes a statement with its own domain.

u[t<T,i<I] = merge(u0[i], c, mul, when=(t == 0, ..))   →   u[0, i<I] = u0[i]
                                                           u[t<1..T, 0] = c
                                                           u[t<1..T, i<1..I] = mul[t,i]
f[i<I] = fold(p[i,0:T])                                →   +f[i<I] over t<T += p[i,t]
                                                           f[i<I] = +f[i]
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from recurra.ir.expr import TRUE, substitute
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Op
from recurra.ir.statement import Array, Statement, StatementGraph
from recurra.ops.control import Merge
from recurra.ops.reduction import Fold
from recurra.sets.boxes import Box, split_boxes

COPY = Merge(when=(TRUE,))
SUM = "+"  # the running value of the fold f is the array +f


def lower_values(
    graph: Graph, sizes: Mapping[str, int], split: Container[str] | None = None
) -> StatementGraph:
    """Return the statements of a graph for known bounds; branches that never hold have none.

    Equations that are not in `split` (None: all are) stay one statement each, which chooses among
    its operands (if conversion): one loop then runs all branches, where it would be cut at every
    border.
    """
    statements: list[Statement] = []
    arrays: list[Array] = []
    for n in graph.nodes.values():
        array = Array(n.name, n.domain, n.type, n.loc)
        if isinstance(n.op, Fold):
            arrays.append(replace(array, name=SUM + n.name))
            statements += _fold(graph, n)
        elif isinstance(n.op, Merge) and (split is None or n.name in split):
            statements += _branches(n, n.op, sizes)
        else:
            statements.append(_whole(n, n.op, n.args))
        arrays.append(array)
    return StatementGraph(
        {a.name: a for a in arrays}, {s.name: s for s in statements}, graph.outputs, graph.dims
    )


def _whole(n: Node, op: Op, args: tuple[Ref, ...]) -> Statement:
    """One statement for all of an equation."""
    whole = Ref(n.name, n.domain.identity)
    return Statement(n.name, op, args, n.domain, n.type, whole, n.name, loc=n.loc)


def _fold(graph: Graph, n: Node) -> tuple[Statement, Statement]:
    """The statement that adds up over the domain of the operand, and the one with the total."""
    total = Ref(SUM + n.name, n.domain.identity)
    source = graph.read(n.args[0].name)
    domain = graph[source.name].domain
    step = Statement(
        total.name, n.op, (source,), domain, n.type, total, n.name, accumulates=True, loc=n.loc
    )
    return step, _whole(n, COPY, (total,))


def _branches(n: Node, op: Merge, sizes: Mapping[str, int]) -> Iterator[Statement]:
    """A copy for each box at which a branch holds, in the order of the branches."""
    boxes = [
        (k, box) for k, when in enumerate(op.when) for box in split_boxes(n.domain, when, sizes)
    ]
    locs = n.locs or (n.loc,) * len(n.args)
    for at, (k, box) in enumerate(boxes):
        name = n.name if len(boxes) == 1 else f"{n.name}.{at}"
        copy = replace(_whole(n, COPY, (n.args[k],)), name=name, loc=locs[k])
        yield _inside(copy, box)


def _inside(s: Statement, box: Box) -> Statement:
    """A statement at the points of a box alone; dims of a single point are read at that point."""
    args = tuple(a.at(box.points) for a in s.args)
    return replace(s, args=args, domain=box.domain, where=substitute(box.where, box.points))
