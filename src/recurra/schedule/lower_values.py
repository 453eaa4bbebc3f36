"""Lower equations to statements: every branch of a definition gets a statement with its domain.

u[t<T,i<I] = merge(u0[i], c, mul, when=(t == 0, ..))   →   u[0, i<I] = u0[i]
                                                           u[t<1..T, 0] = c
                                                           u[t<1..T, i<1..I] = mul[t,i]
f[i<I] = fold(p[i,0:T])                                →   +f[i<I] over t<T += p[i,t]
                                                           f[i<I] = +f[i]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from recurra.analysis.data_conditions import worthwhile_conditions
from recurra.ir.expr import TRUE, Expr, Sym, all_of, compare, substitute
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import Op
from recurra.ir.statement import Array, DataCondition, Statement, StatementGraph
from recurra.ir.types import Domain
from recurra.ops.control import Merge
from recurra.ops.reduction import Fold
from recurra.polyhedral.boxes import Box, split_boxes

COPY = Merge(when=(TRUE,))

Cut = tuple[str, Expr | int]  # a dim, and a point of it that gets its own statement
Cuts = Mapping[str, frozenset[Cut]]  # by equation


def lower_values(
    graph: Graph,
    sizes: Mapping[str, int],
    cuts: Cuts | None = None,
    guards: Mapping[str, Expr] = MappingProxyType({}),
) -> StatementGraph:
    """Return the statements of a graph for known bounds; branches that never hold have none.

    Args:
        cuts: the equations that are split into their branches, and at these points (None: all
            with branches). Others stay one statement, which selects among its operands (if
            conversion): one loop then runs all branches, instead of one loop between each border.
        guards: conditions under which equations run. Conditions on data are added for those that
            these would skip often enough.
    """
    by_data = worthwhile_conditions(graph, sizes)
    if cuts is None:
        cuts = {n.name: frozenset() for n in graph.nodes.values() if isinstance(n.op, Merge)}
    statements: list[Statement] = []
    arrays: list[Array] = []
    for n in graph.nodes.values():
        array = Array(n.name, n.domain, n.type, n.loc)
        lowered: Iterable[Statement] = (_whole(n, n.op, n.args),)
        if isinstance(n.op, Fold):
            lowered = _fold(graph, n)
            arrays.append(replace(array, name=lowered[0].name))
        elif n.name in cuts:
            lowered = _pieces(graph, n, cuts[n.name], sizes)
        if n.name in by_data:
            lowered = [_decided(s, n, by_data[n.name]) for s in lowered]
        if n.name in guards:
            lowered = (replace(s, where=all_of(s.where, guards[n.name])) for s in lowered)
        statements += lowered
        arrays.append(array)
    return StatementGraph(
        {a.name: a for a in arrays}, {s.name: s for s in statements}, graph.outputs, graph.dims
    )


def _whole(node: Node, op: Op, args: tuple[Ref, ...]) -> Statement:
    """One statement for all points of an equation."""
    whole = Ref(node.name, node.domain.identity)
    return Statement(node.name, op, args, node.domain, node.type, whole, node.name, loc=node.loc)


def _decided(statement: Statement, node: Node, conditions: Iterable[DataCondition]) -> Statement:
    """A statement under conditions on data, which are operands unless its op is a merge or fold."""
    ordered = tuple(sorted(conditions, key=str))
    if isinstance(node.op, (Merge, Fold)):
        return replace(statement, decided_by=ordered)
    args = (*statement.args, *(c.ref for c in ordered))
    return replace(statement, args=args, decided_by=ordered, polls=True)


def _fold(graph: Graph, node: Node) -> tuple[Statement, Statement]:
    """The statement that adds the operand to the running value +f, and the total of a fold f."""
    running = Ref(graph.fresh(f"+{node.name}"), node.domain.identity)
    source = graph.read(node.args[0].name)
    own = {r.dim: r for r in node.domain}
    domain = Domain(tuple(own.get(r.dim, r) for r in graph[source.name].domain))
    step = replace(
        _whole(node, node.op, (source,)),
        name=running.name,
        domain=domain,
        write=running,
        accumulates=True,
    )
    return step, _whole(node, COPY, (running,))


def _pieces(
    graph: Graph, node: Node, cuts: Iterable[Cut], sizes: Mapping[str, int]
) -> Iterator[Statement]:
    """A statement for each box of a branch between cuts, in the order of the branches."""
    branches = [(TRUE, _whole(node, node.op, node.args))]
    if isinstance(node.op, Merge):
        copies = [
            replace(_whole(node, COPY, (a,)), loc=loc)
            for a, loc in zip(node.args, node.lines, strict=True)
        ]
        branches = list(zip(node.op.when, copies, strict=True))
    parts: list[tuple[Expr, ...]] = [()]
    for cut in sorted(cuts, key=str):
        finer = [(*part, side) for part in parts for side in _sides(cut)]
        parts = [sides for sides in finer if split_boxes(node.domain, all_of(*sides), sizes)]
    pieces = [
        _restrict(s, box)
        for sides in parts
        for when, s in branches
        for box in split_boxes(node.domain, all_of(when, *sides), sizes)
    ]
    for k, s in enumerate(pieces):
        yield replace(s, name=graph.fresh(f"{node.name}.{k}")) if len(pieces) > 1 else s


def _sides(cut: Cut) -> tuple[Expr, Expr, Expr]:
    """The points before a cut, at it, and after it."""
    dim, at = Sym(cut[0]), cut[1]
    return compare("<", dim, at), compare("==", dim, at), compare(">", dim, at)


def _restrict(statement: Statement, box: Box) -> Statement:
    """A statement at only the points of a box; dims of a single point are read at that point."""
    args = tuple(a.at(box.points) for a in statement.args)
    decided = tuple(replace(c, ref=c.ref.at(box.points)) for c in statement.decided_by)
    where = substitute(box.where, box.points)
    return replace(statement, args=args, domain=box.domain, where=where, decided_by=decided)
