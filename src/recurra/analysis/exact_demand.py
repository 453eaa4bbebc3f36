"""Exact demand analysis: the demanded points of every equation, for known bounds.

    y[t<T] = merge(x[0], y[t-2], when=(t == 0, t > 0))        y: at t % 2 == 0
    z = sum(y[0:T:2])

`demanded_points` is fast and works on conditions; this module works on isl sets, for programs that
would otherwise be refused. Around a recurrence it takes the transitive closure of the reads, which
isl may over-approximate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from recurra.analysis.demanded_points import branch_conditions
from recurra.cost.thresholds import (
    MAX_ASKED_COMPARISONS,
    MAX_CLOSED_EQUATIONS,
    MAX_CLOSED_PARTS,
    MAX_DEMAND_ROUNDS,
    MAX_SET_PARTS,
)
from recurra.ir.expr import FALSE, TRUE, Cmp, Expr, substitute, walk
from recurra.ir.graph import Graph, Node, merge_condition
from recurra.ir.order import components
from recurra.ir.types import Domain
from recurra.ops.elementwise import Going
from recurra.polyhedral import isl

Edges = dict[tuple[str, str], isl.Map]  # (reader, source) -> map from points to points read


def demanded_exactly(
    graph: Graph, sizes: Mapping[str, int], open: Mapping[str, int] = MappingProxyType({})
) -> Mapping[str, Expr]:
    """Return the condition under which each equation is demanded, if it is not always.

    Every bound is in `sizes`, or in `open`, where it may be any number from 1 to its value there.
    An index that multiplies dims demands all points; sets that take long conditions are widened to
    their hull.
    """
    demand = _ExactDemand(graph, sizes, open)
    found = ((name, _condition(x, demand.whole[name])) for name, x in demand.solved().items())
    return {name: condition for name, condition in found if condition != TRUE}


def _condition(points: isl.Set, whole: isl.Set) -> Expr:
    """The condition that a point of `whole` is in a set, or in its hull if that one is too long."""
    exact = isl.condition(points, whole)
    few = sum(isinstance(e, Cmp) for e in walk(exact)) <= MAX_ASKED_COMPARISONS
    return exact if few else isl.condition(isl.hull(points), whole)


@dataclass
class _ExactDemand:
    """The demanded points of each equation so far, and all of its points, as isl sets."""

    graph: Graph
    sizes: Mapping[str, int]
    open: Mapping[str, int]
    whole: dict[str, isl.Set] = field(default_factory=dict[str, isl.Set])
    demand: dict[str, isl.Set] = field(default_factory=dict[str, isl.Set])
    all: set[str] = field(default_factory=set[str])  # equations that are demanded everywhere

    def solved(self) -> Mapping[str, isl.Set]:
        """The demanded points of each equation, computed from readers to sources."""
        nodes, effects = self.graph.nodes, branch_conditions(self.graph)
        for n in nodes.values():
            unread = self.unread(n, effects)
            self.whole[n.name] = self.points(n.domain)
            self.demand[n.name] = self.points(n.domain, unread)
            self.all |= {n.name} if unread == TRUE else set()
        reads = {n.name: [a.name for a in n.args] for n in nodes.values()}
        for part in reversed(components(list(nodes), reads.__getitem__)):
            if not self.settled(part, MAX_DEMAND_ROUNDS):
                self.close(part)
            sources = dict.fromkeys(
                a.name for n in part for a in nodes[n].args if a.name not in part
            )
            for source in sources:
                for reader, k in self.graph.readers[source]:
                    if reader.name in part and source not in self.all:
                        self.add_demand(source, self.of_read(reader, k))
        return self.demand

    def unread(self, node: Node, effects: Mapping[str, Expr]) -> Expr:
        """The condition under which an equation is demanded even if nothing reads it."""
        if node.name in self.graph.outputs or isinstance(node.op, Going):
            return TRUE
        return FALSE if node.op.pure else effects.get(node.name, TRUE)

    def points(self, domain: Domain, where: Expr = TRUE) -> isl.Set:
        constraints = isl.box_constraints(domain.at(self.sizes))
        if where != TRUE:
            constraints.append(isl.isl_text(substitute(where, self.sizes)))
        return isl.make_set(domain.dims, [*constraints, *self.limits], tuple(self.open))

    @property
    def limits(self) -> list[str]:
        return [f"1 <= {n} <= {most}" for n, most in self.open.items()]

    def relation(self, node: Node, index: int) -> isl.Map:
        """The map from each point of an equation to the points that operand `index` reads there."""
        reader, ref = node.domain.at(self.sizes), node.args[index]
        source = self.graph[ref.name].domain.at(self.sizes)
        out = [f"{d}'" for d in source.dims]
        ends = [*isl.box_constraints(reader), *isl.box_constraints(source, "'")]
        when = merge_condition(node, index)
        try:
            reads = isl.index_constraints(ref.at(self.sizes).index, out)
            reads += [] if when is None else [isl.isl_text(substitute(when, self.sizes))]
        except ValueError:  # a product of two dims: any point
            reads = []
        return isl.make_map(reader.dims, out, [*ends, *reads, *self.limits], tuple(self.open))

    def of_read(self, node: Node, index: int) -> isl.Set:
        """The points of its source that operand `index` demands."""
        ref, of_node = node.args[index], self.demand[node.name]
        source = self.graph[ref.name].domain
        same = ref.index == source.identity and source == node.domain
        if same and merge_condition(node, index) is None:
            return of_node
        return of_node.apply(self.relation(node, index))

    def settled(self, part: Collection[str], most: float) -> bool:
        """Propagate demand within a component; return whether it reached a fixed point.

        The demand of each equation may grow `most` times; with `inf`, it is widened each time, by
        dropping a constraint, so that it converges.
        """
        todo, updates, within = deque(part), dict.fromkeys(part, 0), {*part}
        while todo:
            reader = self.graph[todo.popleft()]
            for k, a in enumerate(reader.args):
                source = a.name
                done = source in self.all or source not in within
                if done or updates[source] > most:
                    continue
                if self.add_demand(source, self.of_read(reader, k), widen=most == inf):
                    updates[source] += source not in self.all
                    todo.append(source)
        return max(updates.values()) <= most

    def close(self, part: Collection[str]) -> None:
        """Close the demand of a component by eliminating its equations one after the other."""
        part = [n for n in part if n not in self.all]
        if len(part) > MAX_CLOSED_EQUATIONS:
            self.settled(part, most=inf)
            return
        edges = self.edges(part)
        eliminated = [(name, *self.eliminate(name, edges)) for name in part]
        for name, steps, into in reversed(eliminated):
            for reader, m in into.items():
                self.add_demand(name, self.demand[reader].apply(m))
            self.repeat(name, steps)

    def edges(self, part: Collection[str]) -> Edges:
        out: Edges = {}
        for reader in part:
            for k, a in enumerate(self.graph[reader].args):
                if a.name in part:
                    _add(out, (reader, a.name), self.relation(self.graph[reader], k))
        return out

    def eliminate(self, name: str, edges: Edges) -> tuple[isl.Map | None, Mapping[str, isl.Map]]:
        """Remove an equation from `edges`, connecting its readers to its sources directly.

        Return the closure of its reads of itself, and the reads of its remaining readers.
        """
        own = edges.pop((name, name), None)
        steps = None if own is None else isl.closure(isl.simple_map(own, MAX_CLOSED_PARTS))
        self.repeat(name, steps)
        into = {reader: edges.pop((reader, name)) for reader, x in [*edges] if x == name}
        for source in [x for reader, x in edges if reader == name]:
            m = edges.pop((name, source))
            self.add_demand(source, self.demand[name].apply(m))
            through = m if steps is None else m.union(steps.apply_range(m))
            for reader, before in into.items():
                _add(edges, (reader, source), before.apply_range(through))
        return steps, into

    def add_demand(self, name: str, points: isl.Set, widen: bool = False) -> bool:
        """Add points to the demand of an equation; return true if some of them are new."""
        new, have = points.intersect(self.whole[name]), self.demand[name]
        if new.is_subset(have):
            return False
        if widen:
            self.demand[name] = isl.widen(have, new).intersect(self.whole[name])
        else:
            self.demand[name] = isl.simple_set(have.union(new).coalesce(), MAX_SET_PARTS)
        if self.whole[name].is_subset(self.demand[name]):
            self.all.add(name)
        return True

    def repeat(self, name: str, steps: isl.Map | None) -> None:
        """Add the demand of an equation on itself."""
        if steps is not None:
            self.add_demand(name, self.demand[name].apply(steps))


def _add(edges: Edges, edge: tuple[str, str], relation: isl.Map) -> None:
    both = edges[edge].union(relation).coalesce() if edge in edges else relation
    edges[edge] = isl.simple_map(both, MAX_SET_PARTS)
