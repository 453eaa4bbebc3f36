"""The equations, and their points, through which a gradient passes from a loss to leaves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from recurra.analysis.data_conditions import Decided, conditions_by_equation
from recurra.analysis.demanded_points import demanded
from recurra.analysis.graph_builder import Branch, GraphBuilder, disjoint
from recurra.frontend.tensor_base import Operand
from recurra.ir.expr import Expr, Logic, all_of
from recurra.ir.graph import Graph, Node, Ref, index_symbols
from recurra.ir.order import postorder
from recurra.ir.types import Domain, Tuple, is_float
from recurra.ops.control import Merge
from recurra.ops.elementwise import Detach
from recurra.polyhedral import isl
from recurra.transforms.canonicalize.domains import branch_read
from recurra.transforms.rewriter.rewriting import Rewriting


def written_from(graph: Graph, branches: Sequence[Branch], stop: set[str]) -> set[str]:
    """The equations that branches are computed from, up to and including those in `stop`."""

    def sources(name: str) -> list[str]:
        return [] if name in stop else [a.name for a in graph[name].args]

    return set(postorder((b.value.name for b in branches), sources))


def passing(graph: Graph) -> set[str]:
    """The equations that have a gradient and pass it on to their operands."""
    pure = (n for n in graph.nodes.values() if n.op.pure and not isinstance(n.op, Detach))
    return {n.name for n in pure if _has_gradient(n)}


def snapshot(builder: GraphBuilder) -> Graph:
    """The graph of the program, with the branches written so far."""
    nodes = dict(builder.nodes)
    for name, branches in builder.branches.items():
        op = Merge(when=disjoint([b.when for b in branches]))
        nodes[name] = replace(nodes[name], op=op, args=tuple(b.value for b in branches))
    return Graph(nodes, (), tuple(builder.dims))


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

    def sources(name: str) -> Iterator[str]:
        return (a.name for a in graph[name].args if name in passed and _has_gradient(graph[a.name]))

    above = set(postorder([loss] if _has_gradient(graph[loss]) else [], sources))
    on_the_way = above & passed
    return set(
        postorder(leaves & above, lambda n: {r.name for r, _ in graph.readers[n]} & on_the_way)
    )


def _has_gradient(node: Node) -> bool:
    return not isinstance(node.type, Tuple) and is_float(node.type.dtype)


def dependence_conditions(graph: Graph, loss: str, through: set[str]) -> Mapping[str, Expr]:
    """The conditions on dims outside of which a loss does not depend on an equation of `through`.

    Only dependences through these equations count. Outside, the cotangent is 0, even where a slope
    is infinite.
    """
    demand = demanded(_of_paths(graph, loss, through), {})
    return {k: without_implied(c, graph[k].domain) for k, c in demand.items() if k in through}


def decided_paths(graph: Graph, loss: str, through: set[str]) -> Mapping[str, Decided]:
    """The conditions on data without which a loss does not depend on an equation of `through`."""
    return conditions_by_equation(_of_paths(graph, loss, through))


def _of_paths(graph: Graph, loss: str, through: set[str]) -> Graph:
    """The graph of a loss in which only the equations of `through` have operands."""
    nodes = {k: n if k in through else replace(n, args=()) for k, n in graph.nodes.items()}
    return Graph(nodes, (loss,), graph.dims)


def without_implied(condition: Expr, domain: Domain) -> Expr:
    """Drop the parts of a condition that hold everywhere in a domain."""
    parts = (condition,)
    if isinstance(condition, Logic) and condition.op == "&":
        parts = condition.args
    return all_of(*(c for c in parts if not isl.always(c, domain)))


def has_gradient(cotangent: Operand, read: Operand, operands: Sequence[Operand]) -> bool:
    """Does a cotangent depend on one of the operands, and not only on the cotangent `read`?

    Only then may its slope be infinite.
    """
    nodes, found = read.builder.nodes, {x.name for x in operands} - {read.name}
    names = postorder(
        [cotangent.name], lambda n: [] if n == read.name else [a.name for a in nodes[n].args]
    )
    return not found.isdisjoint(names)
