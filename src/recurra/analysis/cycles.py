"""Search for equations that need each other at the same point: x[t] = f(y[t]), y[t] = g(x[t])."""

from __future__ import annotations

from recurra.analysis.proofs import CounterExample, Proof
from recurra.cost.thresholds import MAX_CYCLE_CELLS
from recurra.ir.expr import TRUE, Expr, Sym, all_of, compare, negate
from recurra.ir.graph import Graph, Node, merge_condition
from recurra.ir.order import components

Edges = dict[str, list[tuple[int, str, Expr]]]  # reader -> (operand, source, where it is read)
Cycle = list[tuple[Node, int]]  # each node reads, as that operand, the next one


def same_point_cycle(proof: Proof) -> tuple[Cycle, CounterExample] | None:
    """A cycle of reads at the identity and a point where all of them happen, or None."""
    edges = _core(_identity_reads(proof.graph))
    if not edges:
        return None
    hull: dict[str, tuple[int, int]] = {}
    for name in edges:
        for d, (lo, hi) in proof.box(proof.graph[name].domain).items():
            old = hull.get(d, (lo, hi))
            hull[d] = (min(lo, old[0]), max(hi, old[1]))
    active = {
        name: [
            (k, source, proof.at(all_of(_domain(proof, name), when))) for k, source, when in reads
        ]
        for name, reads in edges.items()
    }
    for cell, point in _cells(proof, hull, [w for reads in active.values() for _, _, w in reads]):
        here = {n: [r for r in reads if r[2] in cell] for n, reads in active.items()}
        core = _core(here)
        if core:
            return _walk(proof.graph, core), point
    return None


def _identity_reads(graph: Graph) -> Edges:
    """The reads of the same point, between equations over the same dims."""
    return {
        n.name: [
            (k, a.name, merge_condition(n, k) or TRUE)
            for k, a in enumerate(n.args)
            if a.index == graph[a.name].domain.identity and len(a.index) == len(n.domain)
        ]
        for n in graph.nodes.values()
    }


def _core(edges: Edges) -> Edges:
    """The reads that are part of a cycle: those within a strongly connected component."""
    parts = components(edges, lambda n: [source for _, source, _ in edges[n]])
    part_of = {n: k for k, part in enumerate(parts) for n in part}
    inside = {n: [r for r in rs if part_of[r[1]] == part_of[n]] for n, rs in edges.items()}
    return {n: reads for n, reads in inside.items() if reads}


def _domain(proof: Proof, name: str) -> Expr:
    """The condition under which a point is one of an equation."""
    domain = proof.graph[name].domain
    ends = [(Sym(d), lo, hi) for d, (lo, hi) in proof.box(domain).items()]
    inside = (c for d, lo, hi in ends for c in (compare(">=", d, lo), compare("<=", d, hi)))
    return all_of(*inside, proof.edges(domain))


def _cells(
    proof: Proof, hull: dict[str, tuple[int, int]], conditions: list[Expr]
) -> list[tuple[frozenset[Expr], CounterExample]]:
    """Split the box along every condition; return the conditions that hold in each part, and a
    point of it. The list is empty if there are more than MAX_CYCLE_CELLS parts."""
    start = proof.first(hull, TRUE)
    if start is None:
        return []
    cells: list[tuple[frozenset[Expr], Expr, CounterExample]] = [(frozenset(), TRUE, start)]
    for c in dict.fromkeys(conditions):
        cut: list[tuple[frozenset[Expr], Expr, CounterExample]] = []
        for holding, where, _ in cells:
            for side, now in ((c, holding | {c}), (negate(c), holding)):
                part = all_of(where, side)
                point = proof.first(hull, part)
                if point is not None:
                    cut.append((now, part, point))
        cells = cut
        if len(cells) > MAX_CYCLE_CELLS:
            return []
    return [(holding, point) for holding, _, point in cells]


def _walk(graph: Graph, core: Edges) -> Cycle:
    """A cycle of the core, from the first of its equations in the graph's order."""
    name, path = next(iter(core)), dict[str, int]()
    steps: Cycle = []
    while name not in path:
        k, source, _ = core[name][0]
        path[name] = len(steps)
        steps.append((graph[name], k))
        name = source
    cycle = steps[path[name] :]
    order = list(graph.nodes)
    first = min(range(len(cycle)), key=lambda i: order.index(cycle[i][0].name))
    return [*cycle[first:], *cycle[:first]]
