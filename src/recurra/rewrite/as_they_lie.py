"""as_they_lie: samples are counted as they lie, in place of moving what they are taken from.

    flat = reshape(transpose(o, order=(1,0,2)));  x = take(flat, k)
    →   flat = reshape(o);  x = take(flat, renumber(k, sizes=(T,B), order=(1,0)))

Axes of batches lie inside of those of steps, and are the slower ones where a program counts them.
Rows whose own axes are moved are left as they are: they do not lie in one piece.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.types import Type
from recurra.ops.indexing import Take
from recurra.ops.movement import Reshape, Transpose
from recurra.ops.samples import Renumber, Samples
from recurra.rewrite.fuel import fuel


def as_they_lie(graph: Graph) -> Graph:
    """The graph with such samples, those that the host takes included."""
    for n in list(graph.nodes.values()):
        if isinstance(n.op, Samples):
            graph = _by_host(graph, n, n.op)
        elif isinstance(n.op, Take):
            graph = _taken(graph, n, n.op)
    return graph.live()


def _by_host(graph: Graph, n: Node, op: Samples) -> Graph:
    a, k = n.args
    moved = graph[a.name]
    points = op.lead(len(graph.read_type(k).shape), len(graph.read_type(a).shape))
    order = _order(graph, a, points)
    if not order:
        return graph
    lie = replace(n, op=replace(op, order=order), args=(moved.args[0], k))
    return replace(graph, nodes={**graph.nodes, n.name: lie})


def _taken(graph: Graph, n: Node, op: Take) -> Graph:
    flat = graph[n.args[0].name]
    if op.labels[0] != op.axis or not graph.is_identity(n.args[0]):
        return graph
    if not isinstance(flat.op, Reshape) or not isinstance(flat.type, Type):
        return graph
    (a,) = flat.args
    shape = graph.read_type(a).shape
    points = len(shape) - len(flat.type.shape) + 1
    order = _order(graph, a, points)
    if not order or shape[points:] != flat.type.shape[1:]:
        return graph
    if not fuel().burn("samples → counted as they lie", n.name):
        return graph
    lies = graph[a.name].args[0]
    sizes = graph.read_type(lies).shape[:points]
    made = _once(graph, replace(flat, name=f"{flat.name}_lies", args=(lies,)))
    k, there = n.args[1], n.domain.identity
    to = Node(
        "place", Renumber(sizes=sizes, order=order), (k,), n.domain, graph.read_type(k), n.loc
    )
    number = _once(graph, to)
    args = (Ref(made.name, flat.domain.identity), Ref(number.name, there))
    nodes = dict[str, Node]()
    for name, x in graph.nodes.items():
        before = (made, number) if name == n.name else ()
        nodes |= {y.name: y for y in before if y.name not in nodes}
        nodes[name] = replace(n, args=args) if name == n.name else x
    return replace(graph, nodes=nodes)


def _order(graph: Graph, a: Ref, points: int) -> tuple[int, ...]:
    """How the first axes of what is read are moved, where no others are."""
    moved = graph[a.name]
    if points < 2 or not isinstance(moved.op, Transpose) or not graph.is_identity(a):
        return ()
    order = moved.op.order
    return order[:points] if order[points:] == (*range(points, len(order)),) else ()


def _once(graph: Graph, n: Node) -> Node:
    """The node of the graph that is the same but for its name, or this one with a new name."""
    same = (x for x in graph.nodes.values() if replace(x, name=n.name, loc=n.loc) == n)
    return next(same, replace(n, name=graph.fresh(n.name)))
