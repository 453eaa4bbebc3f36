"""The equations, and their points, that a gradient goes through from a loss to leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from recurra.analysis.data_conditions import Decided, decided
from recurra.analysis.demanded_points import demanded
from recurra.analysis.tracer import Branch, Tracer, disjoint
from recurra.frontend.read import Operand
from recurra.ir.expr import Expr, Logic, both
from recurra.ir.graph import Graph, Node, Ref, index_symbols
from recurra.ir.types import Domain, Tuple, is_float
from recurra.ops.control import Merge
from recurra.ops.elementwise import Detach
from recurra.polyhedral import isl
from recurra.transforms.canonicalize.domains import branch_read
from recurra.transforms.rewriter.rewriting import Rewriting


def written_from(graph: Graph, branches: Sequence[Branch], stop: set[str]) -> set[str]:
    """The equations that branches are computed from, up to those of `stop`."""
    found: set[str] = set()
    todo = [b.value.name for b in branches]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [a.name for a in graph[name].args] if name not in stop else []
    return found


def passing(graph: Graph) -> set[str]:
    """The equations that gradients go through."""
    return {name for name, node in graph.nodes.items() if _differentiable(node)}


def snapshot(tracer: Tracer) -> Graph:
    """The graph with the branches written so far."""
    nodes = dict(tracer.nodes)
    for name, branches in tracer.branches.items():
        op = Merge(when=disjoint([b.when for b in branches]))
        nodes[name] = replace(nodes[name], op=op, args=tuple(b.value for b in branches))
    return Graph(nodes, (), tuple(tracer.dims))


def as_defined(graph: Graph, stop: Collection[str]) -> Graph:
    """The graph where x[T-1] is read as the one branch of x that defines it, but not of `stop`.

    The gradient then goes straight there, and not through all of the recurrence that x may be.
    """
    g = Rewriting.of(graph, {})

    def read(node: Node, index: int, ref: Ref) -> Ref:
        fixed = any(not index_symbols(e) & graph.declared.keys() for e in ref.index)
        x = graph[ref.name]
        if not fixed or ref.name in stop or not isinstance(x.op, Merge):
            return ref
        return branch_read(node, index, x, g) or ref

    every = graph.nodes.values()
    read_so = (replace(n, args=tuple(read(n, k, a) for k, a in enumerate(n.args))) for n in every)
    return replace(graph, nodes={n.name: n for n in read_so})


def paths_between(graph: Graph, loss: str, leaves: set[str], passed: set[str]) -> set[str]:
    """The equations on some path from a leaf to the loss, which leads through `passed` only."""
    above: set[str] = set()
    todo = [loss]
    while todo:
        name = todo.pop()
        if name in above or not _has_gradient(graph[name]):
            continue
        above.add(name)
        if name in passed:
            todo += [a.name for a in graph[name].args]
    below = leaves & above
    todo, on_the_way = list(below), above & passed
    while todo:
        for reader, _ in graph.readers[todo.pop()]:
            if reader.name in on_the_way and reader.name not in below:
                below.add(reader.name)
                todo.append(reader.name)
    return below


def _has_gradient(node: Node) -> bool:
    return not isinstance(node.type, Tuple) and is_float(node.type.dtype)


def _differentiable(node: Node) -> bool:
    """Is there a gradient, and does it go on to what the equation reads?"""
    return _has_gradient(node) and node.op.pure and not isinstance(node.op, Detach)


def heard(graph: Graph, loss: str, through: set[str]) -> Mapping[str, Expr]:
    """The conditions on dims outside of which a loss does not depend on an equation.

    Those of `through` are followed. There the cotangent is 0, and stays so whatever the slope.
    """
    nodes = {k: n if k in through else replace(n, args=()) for k, n in graph.nodes.items()}
    asked = demanded(Graph(nodes, (loss,), graph.dims), {})
    return {k: untold(c, graph[k].domain) for k, c in asked.items() if k in through}


def decided_paths(graph: Graph, loss: str, through: set[str]) -> Mapping[str, Decided]:
    """The conditions on data without which a loss does not depend on an equation of `through`."""
    nodes = {k: n if k in through else replace(n, args=()) for k, n in graph.nodes.items()}
    return decided(Graph(nodes, (loss,), graph.dims))


def untold(condition: Expr, domain: Domain) -> Expr:
    """The parts of a condition that do not hold everywhere in a domain."""
    parts = (condition,)
    if isinstance(condition, Logic) and condition.op == "&":
        parts = condition.args
    return both(*(c for c in parts if not isl.always(c, domain)))


def has_slope(cotangent: Operand, read: Operand, operands: Sequence[Operand]) -> bool:
    """Is the cotangent of an operand made of more than `read`, of what may be infinite?"""
    stop, tracer = {x.name for x in operands}, read.tracer
    todo, seen = [cotangent.name], {read.name}
    while todo:
        name = todo.pop()
        if name in stop - {read.name}:
            return True
        if name not in seen:
            seen.add(name)
            todo += [a.name for a in tracer.nodes[name].args]
    return False
