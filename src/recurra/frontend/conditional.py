"""`rc.cond`: a conditional on one Boolean, of which only the chosen side is computed.

y = rc.cond(done, env.reset(), o)      →      y = cond(done, reset_0, o)
                                              reset = call(token, done, if_=1)
"""

from __future__ import annotations

from dataclasses import replace

from recurra.analysis.data_conditions import (
    UseCondition,
    conditions_by_equation,
    decision,
    is_decided,
    use_conditions,
)
from recurra.analysis.graph_builder import current
from recurra.errors import RecurraError, ShapeError
from recurra.frontend.dims import Index
from recurra.frontend.functions import where
from recurra.frontend.host_calls import without_order
from recurra.frontend.tensor import RecurrentTensor, as_tensor, elementwise
from recurra.ir.graph import Graph
from recurra.ops.control import Call
from recurra.ops.elementwise import Cond


def cond(cond: object, a: object, b: object) -> RecurrentTensor:
    """`a` if the Boolean `cond` of a point is true, else `b`; the other side is not computed.

    Host calls that only the other side needs are not made. Equations that cost little, or that
    something else reads, are computed all the same. Gradients through the other side are 0.
    """
    if callable(a) or callable(b):
        raise RecurraError.at_user_line(
            "rc.cond takes values, not functions",
            facts="nothing is computed where it is written: only the side that is chosen runs",
            hint="write rc.cond(p, f(x), g(x))",
        )
    if isinstance(cond, Index):
        return where(cond, a, b)
    chosen = as_tensor(cond)
    if chosen.shape or chosen.dtype != "bool":
        raise ShapeError.at_user_line(
            f"rc.cond is asked by {chosen.type}, which is not one truth value",
            facts=f"the condition is {chosen!r}",
            hint="reduce it, rc.cond((x > 0).any(), a, b), or choose element by element: "
            "rc.where(x > 0, a, b)",
        )
    current().finishing[calls_where_decided] = None
    return elementwise(Cond, chosen, a, b)


def calls_where_decided(graph: Graph) -> Graph:
    """Restrict host calls to the points at which one of their results is taken.

    x[0] = f;  x[t] = cond(d, f, x[t-1])      →      f = call(.., t == 0 | d[t], if_=..)
    """
    unordered = without_order(graph)
    found, nodes = conditions_by_equation(unordered, calls=True), dict(graph.nodes)
    known = dict[str, frozenset[UseCondition]]()
    for call in graph.nodes.values():
        if not isinstance(call.op, Call) or call.op.if_ is not None:
            continue
        items = [r.name for r, _ in unordered.readers.get(call.name, ())]
        read = [r for r in items if unordered.readers[r] or r in graph.outputs]
        taken = {x for r in read for x in use_conditions(unordered, r, found, known)}
        if not is_decided(unordered, call.name, taken):  # then by the conditions all have in common
            common = [frozenset.intersection(*(x.by for x in taken))] if taken else []
            taken = {UseCondition(by=x) for x in common if x}
        if taken:
            if_ = decision(call, taken, nodes)
            op = replace(call.op, if_=len(call.args))
            nodes[call.name] = replace(call, op=op, args=(*call.args, if_))
    return replace(graph, nodes=nodes)
