"""`rc.cond`: a choice between two values by one truth value, of which only one is computed.

y = rc.cond(done, env.reset(), o)      →      y = cond(done, reset_0, o)
                                              reset = call(token, done, if_=1)
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from recurra.analysis.data_conditions import NOTHING, decided
from recurra.analysis.tracer import current
from recurra.errors import RecurraError, ShapeError, here
from recurra.frontend.dims import Index
from recurra.frontend.functions import where
from recurra.frontend.host_calls import without_order
from recurra.frontend.tensor import RecurrentTensor, as_tensor, elementwise
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Op
from recurra.ir.types import Type
from recurra.ops.control import Call
from recurra.ops.elementwise import And, Cond, Not


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
    """Return the graph with host calls made at those points only where what decides them holds."""
    apart = without_order(graph)
    found, nodes = decided(apart, calls=True), dict(graph.nodes)

    def added(op: Op, *args: Ref) -> Ref:
        name = graph.fresh("decides", nodes)
        nodes[name] = Node(name, op, args, call.domain, Type("bool"), call.loc)
        return Ref(name, call.domain.identity)

    for call in graph.nodes.values():
        if not isinstance(call.op, Call) or call.op.if_ is not None:
            continue
        items = [r.name for r, _ in apart.readers.get(call.name, ())]
        read = [r for r in items if apart.readers[r] or r in graph.outputs]
        if not read:
            continue
        conditions = frozenset.intersection(*(found.get(r, NOTHING) for r in read))
        asked = [c.ref if c.holds else added(Not(), c.ref) for c in sorted(conditions, key=str)]
        if asked:
            every = reduce(lambda a, b: added(And(), a, b), asked)
            only = replace(call.op, if_=len(call.args))
            nodes[call.name] = replace(call, op=only, args=(*call.args, every))
    return replace(graph, nodes=nodes)
