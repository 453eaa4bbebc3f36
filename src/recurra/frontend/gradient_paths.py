"""The equations, and their points, through which a gradient passes from a loss to leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from recurra.analysis.data_conditions import Decided, decided
from recurra.analysis.demanded_points import demanded
from recurra.analysis.program_tracer import Branch, Tracer, disjoint
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
    """The equations that branches are computed from, up to and including those in `stop`."""
    found: set[str] = set()
    todo = [b.value.name for b in branches]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [a.name for a in graph[name].args] if name not in stop else []
    return found


def passing(graph: Graph) -> set[str]:
    """The equations through which gradients pass."""
    return {name for name, node in graph.nodes.items() if _differentiable(node)}


def snapshot(tracer: Tracer) -> Graph:
    """The graph of the program, with the branches written so far."""
    nodes = dict(tracer.nodes)
    for name, branches in tracer.branches.items():
        op = Merge(when=disjoint([b.when for b in branches]))
        nodes[name] = replace(nodes[name], op=op, args=tuple(b.value for b in branches))
    return Graph(nodes, (), tuple(tracer.dims))


def as_defined(graph: Graph, stop: Collection[str]) -> Graph:
    """Replace reads of one point, x[T-1], by the branch of x that defines it, except for `stop`.

    The gradient then goes straight to that branch, not through the whole recurrence of x.
    """
    g = Rewriting.of(graph, {})

    def read(node: Node, index: int, ref: Ref) -> Ref:
        fixed = any(not index_symbols(e) & graph.declared.keys() for e in ref.index)
        x = graph[ref.name]
        if not fixed or ref.name in stop or not isinstance(x.op, Merge):
            return ref
        return branch_read(node, index, x, g) or ref

    every = graph.nodes.values()
    nodes = (replace(n, args=tuple(read(n, k, a) for k, a in enumerate(n.args))) for n in every)
    return replace(graph, nodes={n.name: n for n in nodes})


def paths_between(graph: Graph, loss: str, leaves: set[str], passed: set[str]) -> set[str]:
    """The equations on paths from a leaf to the loss that lead through `passed` only."""
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
    """Does the equation have a gradient and pass it on to its operands?"""
    return _has_gradient(node) and node.op.pure and not isinstance(node.op, Detach)


def dependence_conditions(graph: Graph, loss: str, through: set[str]) -> Mapping[str, Expr]:
    """The conditions on dims outside of which a loss does not depend on an equation of `through`.

    Only dependences through these equations count. Outside, the cotangent is 0, even where a slope
    is infinite.
    """
    nodes = {k: n if k in through else replace(n, args=()) for k, n in graph.nodes.items()}
    demand = demanded(Graph(nodes, (loss,), graph.dims), {})
    return {k: without_implied(c, graph[k].domain) for k, c in demand.items() if k in through}


def decided_paths(graph: Graph, loss: str, through: set[str]) -> Mapping[str, Decided]:
    """The conditions on data without which a loss does not depend on an equation of `through`."""
    nodes = {k: n if k in through else replace(n, args=()) for k, n in graph.nodes.items()}
    return decided(Graph(nodes, (loss,), graph.dims))


def without_implied(condition: Expr, domain: Domain) -> Expr:
    """Drop the parts of a condition that hold everywhere in a domain."""
    parts = (condition,)
    if isinstance(condition, Logic) and condition.op == "&":
        parts = condition.args
    return both(*(c for c in parts if not isl.always(c, domain)))


def has_slope(cotangent: Operand, read: Operand, operands: Sequence[Operand]) -> bool:
    """Does a cotangent depend on one of the operands, and not only on the cotangent `read`?

    Only then may its slope be infinite.
    """
    stop, tracer = {x.name for x in operands}, read.tracer
    todo, visited = [cotangent.name], {read.name}
    while todo:
        name = todo.pop()
        if name in stop - {read.name}:
            return True
        if name not in visited:
            visited.add(name)
            todo += [a.name for a in tracer.nodes[name].args]
    return False
