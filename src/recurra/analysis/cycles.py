"""Search for equations that need each other at the same point: x[t] = f(y[t]), y[t] = g(x[t])."""

from __future__ import annotations

from recurra.analysis.proofs import Point, Proof
from recurra.cost.thresholds import MAX_CYCLE_CELLS
from recurra.ir.expr import TRUE, Expr, both, compare, negate
from recurra.ir.graph import Graph, Node, merge_condition

Edges = dict[str, list[tuple[int, str, Expr]]]  # reader -> (operand, source, where it is read)
Cycle = list[tuple[Node, int]]  # each node reads, as that operand, the next one


def same_point_cycle(proof: Proof) -> tuple[Cycle, Point] | None:
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
        name: [(k, source, proof.at(both(_domain(proof, name), when))) for k, source, when in reads]
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
    """The equations on cycles and on paths between cycles."""
    kept = _waiting({n: [s for _, s, _ in reads] for n, reads in edges.items()})
    needs = {n: [s for _, s, _ in edges[n] if s in kept] for n in kept}
    readers: dict[str, list[str]] = {n: [] for n in kept}
    for n, sources in needs.items():
        for s in sources:
            readers[s].append(n)
    kept &= _waiting(readers)
    return {n: [r for r in edges[n] if r[1] in kept] for n in edges if n in kept}


def _waiting(needs: dict[str, list[str]]) -> set[str]:
    """The names that can never start, if each starts after all that it needs (Kahn, 1962)."""
    released: dict[str, list[str]] = {n: [] for n in needs}
    for n, sources in needs.items():
        for s in sources:
            released[s].append(n)
    waits = {n: len(sources) for n, sources in needs.items()}
    ready = [n for n, count in waits.items() if count == 0]
    while ready:
        name = ready.pop()
        del waits[name]
        for n in released[name]:
            waits[n] -= 1
            if waits[n] == 0:
                ready.append(n)
    return set(waits)


def _domain(proof: Proof, name: str) -> Expr:
    box = proof.box(proof.graph[name].domain)
    dims = {r.dim: r.sym for r in proof.graph[name].domain}
    ends = [(compare(">=", dims[d], lo), compare("<=", dims[d], hi)) for d, (lo, hi) in box.items()]
    return both(*(c for pair in ends for c in pair), proof.edges(proof.graph[name].domain))


def _cells(
    proof: Proof, hull: dict[str, tuple[int, int]], conditions: list[Expr]
) -> list[tuple[frozenset[Expr], Point]]:
    """Split the box along every condition; return the conditions that hold in each part, and a
    point of it. The list is empty if there are more than MAX_CYCLE_CELLS parts."""
    start = proof.first(hull, TRUE)
    if start is None:
        return []
    cells: list[tuple[frozenset[Expr], Expr, Point]] = [(frozenset(), TRUE, start)]
    for c in dict.fromkeys(conditions):
        cut: list[tuple[frozenset[Expr], Expr, Point]] = []
        for holding, where, _ in cells:
            for side, now in ((c, holding | {c}), (negate(c), holding)):
                part = both(where, side)
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
