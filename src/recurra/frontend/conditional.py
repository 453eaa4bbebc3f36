"""`rc.cond`: a choice between two values by one truth value, of which only one is computed.

y = rc.cond(done, env.reset(), o)      →      y = cond(done, reset_0, o)
                                              reset = call(token, done, if_=1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

from recurra.analysis.data_conditions import NOTHING, Decided, decided, of_read
from recurra.analysis.tracer import current
from recurra.cost.thresholds import MAX_TAKERS
from recurra.errors import RecurraError, ShapeError, here
from recurra.frontend.dims import Index
from recurra.frontend.functions import where
from recurra.frontend.host_calls import without_order
from recurra.frontend.tensor import RecurrentTensor, as_tensor, elementwise
from recurra.ir.expr import TRUE, Expr
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Op
from recurra.ir.types import Domain, Type
from recurra.ops.control import Call, Merge
from recurra.ops.elementwise import And, Cond, Not, Or
from recurra.ops.source import Value


def cond(cond: object, a: object, b: object) -> RecurrentTensor:
    """`a` where the one truth value `cond` of a point holds, else `b`; the other is not computed.

    Host calls that only the other side needs are not made. What costs little is computed all the
    same, and so is what something else reads. Gradients through the side that is not taken are 0.
    """
    if callable(a) or callable(b):
        raise RecurraError(
            "rc.cond takes values, not functions",
            facts="nothing is computed where it is written: only the side that is chosen runs",
            hint="write rc.cond(p, f(x), g(x))",
            loc=here(),
        )
    if isinstance(cond, Index):
        return where(cond, a, b)
    chosen = as_tensor(cond)
    if chosen.shape or chosen.dtype != "bool":
        raise ShapeError(
            f"rc.cond is asked by {chosen.type}, which is not one truth value",
            facts=f"the condition is {chosen!r}",
            hint="reduce it, rc.cond((x > 0).any(), a, b), or choose element by element: "
            "rc.where(x > 0, a, b)",
            loc=here(),
        )
    current().finishing[calls_where_decided] = None
    return elementwise(Cond, chosen, a, b)


def calls_where_decided(graph: Graph) -> Graph:
    """Return the graph with host calls made at those points only where somebody takes a result.

    x[0] = f;  x[t] = cond(d, f, x[t-1])      →      f = call(.., t == 0 | d[t], if_=..)
    """
    apart = without_order(graph)
    found, nodes = decided(apart, calls=True), dict(graph.nodes)
    known = dict[str, frozenset[Taken]]()

    def added(op: Op, domain: Domain, *args: Ref) -> Ref:
        name = graph.fresh("decides", nodes)
        nodes[name] = Node(name, op, args, domain, Type("bool"), call.loc)
        return Ref(name, domain.identity)

    def holds(taken: Taken) -> list[Ref]:
        """Truth values all of which hold where a result is taken."""
        value = Value(expr=taken.where, dtype="bool")
        dims = [] if taken.where == TRUE else [added(value, call.domain.of(value.mentions()))]
        data = sorted(taken.by, key=str)
        return [*dims, *(c.ref if c.holds else added(Not(), call.domain, c.ref) for c in data)]

    for call in graph.nodes.values():
        if not isinstance(call.op, Call) or call.op.if_ is not None:
            continue
        items = [r.name for r, _ in apart.readers.get(call.name, ())]
        read = [r for r in items if apart.readers[r] or r in graph.outputs]
        taken = {x for r in read for x in _takers(apart, r, found, known)}
        if any(x.by for x in taken) and Taken() not in taken:
            either = [
                reduce(lambda a, b: added(And(), call.domain, a, b), holds(x))
                for x in sorted(taken, key=str)
            ]
            if_ = reduce(lambda a, b: added(Or(), call.domain, a, b), either)
            only = replace(call.op, if_=len(call.args))
            nodes[call.name] = replace(call, op=only, args=(*call.args, if_))
    return replace(graph, nodes=nodes)


@dataclass(frozen=True)
class Taken:
    """Where a value is taken: where a condition on dims holds, and others on data."""

    where: Expr = TRUE
    by: Decided = NOTHING


def _takers(
    graph: Graph,
    name: str,
    found: Mapping[str, Decided],
    known: dict[str, frozenset[Taken]],
) -> frozenset[Taken]:
    """Where readers take a value: choices say it, and others take it where they are taken."""
    if name not in known:
        taken = {Taken()} if name in graph.outputs else set[Taken]()
        for reader, k in graph.readers[name]:
            own = reader.args[k].index == graph[name].domain.identity == reader.domain.identity
            if isinstance(reader.op, Merge):
                taken.add(Taken(reader.op.when[k] if own else TRUE))
            elif (by := of_read(graph, reader, k, found.get(reader.name, NOTHING))) or not own:
                taken.add(Taken(by=by))
            else:  # nothing is read at its own point by itself, if not through a choice
                taken |= _takers(graph, reader.name, found, known)
        many = Taken() in taken or len(taken) > MAX_TAKERS
        known[name] = frozenset([Taken()] if many else taken)
    return known[name]
