"""The points of every equation that are asked for, exactly, for bounds that are known.

    y[t<T] = merge(x[0], y[t-2], when=(t == 0, t > 0))        y: at t % 2 == 0
    z = sum(y[0:T:2])

`demanded_points` answers by conditions, at once; this asks isl for sets, for what would else be
refused. Around a recurrence it takes the closure of its reads, which isl may give too wide.
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
from recurra.ir.types import Domain, Range
from recurra.ops.elementwise import Going
from recurra.polyhedral import isl

Edges = dict[tuple[str, str], isl.Map]  # of a reader and what it reads: from points to points


def demanded_exactly(
    graph: Graph, sizes: Mapping[str, int], open: Mapping[str, int] = MappingProxyType({})
) -> Mapping[str, Expr]:
    """Return the condition under which each equation is asked for, of those that are not always.

    All bounds are in `sizes`, or in `open`: these may be any number from 1 to the one there. Where
    an index multiplies dims, all points are asked for; of points that are hard to tell, all those
    between them.
    """
    found = _ExactDemand(graph, sizes, open)
    told = ((name, _told(x, found.whole[name])) for name, x in found.solved().items())
    return {name: condition for name, condition in told if condition != TRUE}


def _told(points: isl.Set, whole: isl.Set) -> Expr:
    """The condition that a point of an equation is among some; in few words, or of more points."""
    exact = isl.condition(points, whole)
    few = sum(isinstance(e, Cmp) for e in walk(exact)) <= MAX_ASKED_COMPARISONS
    return exact if few else isl.condition(isl.hull(points), whole)


@dataclass
class _ExactDemand:
    graph: Graph
    sizes: Mapping[str, int]
    open: Mapping[str, int]
    whole: dict[str, isl.Set] = field(default_factory=dict[str, isl.Set])
    asked: dict[str, isl.Set] = field(default_factory=dict[str, isl.Set])
    all: set[str] = field(default_factory=set[str])  # those of which every point is asked for

    def solved(self) -> Mapping[str, isl.Set]:
        """The points of each equation, readers first."""
        nodes, effects = self.graph.nodes, branch_conditions(self.graph)
        for n in nodes.values():
            begins = self.begins(n, effects)
            self.whole[n.name] = self.points(n.domain)
            self.asked[n.name] = self.points(n.domain, begins)
            self.all |= {n.name} if begins == TRUE else set()
        reads = {n.name: [a.name for a in n.args] for n in nodes.values()}
        for part in reversed(components(list(nodes), reads.__getitem__)):
            if not self.settled(part, MAX_DEMAND_ROUNDS):
                self.close(part)
            behind = dict.fromkeys(
                a.name for n in part for a in nodes[n].args if a.name not in part
            )
            for source in behind:
                for reader, k in self.graph.readers[source]:
                    if reader.name in part and source not in self.all:
                        self.ask(source, self.of_read(reader, k))
        return self.asked

    def begins(self, node: Node, effects: Mapping[str, Expr]) -> Expr:
        """The condition under which an equation is asked for whoever reads it."""
        if node.name in self.graph.outputs or isinstance(node.op, Going):
            return TRUE
        return FALSE if node.op.pure else effects.get(node.name, TRUE)

    def points(self, domain: Domain, where: Expr = TRUE) -> isl.Set:
        constraints = isl.box_constraints(self.bound(domain))
        if where != TRUE:
            constraints.append(isl.text(substitute(where, self.sizes)))
        return isl.make_set(domain.dims, [*constraints, *self.limits], tuple(self.open))

    @property
    def limits(self) -> list[str]:
        return [f"1 <= {n} <= {most}" for n, most in self.open.items()]

    def bound(self, domain: Domain) -> Domain:
        """A domain with the numbers of its bounds."""
        ends = ((r.dim, substitute(r.hi, self.sizes), substitute(r.lo, self.sizes)) for r in domain)
        return Domain(tuple(Range(*x) for x in ends))

    def relation(self, node: Node, index: int) -> isl.Map:
        """The points that an operand asks for, of each point of its equation."""
        mine, ref = self.bound(node.domain), node.args[index]
        source = self.bound(self.graph[ref.name].domain)
        out = [f"{d}'" for d in source.dims]
        ends = [*isl.box_constraints(mine), *isl.box_constraints(source, "'")]
        when = merge_condition(node, index)
        try:
            asked = isl.index_constraints(ref.at(self.sizes).index, out)
            asked += [] if when is None else [isl.text(substitute(when, self.sizes))]
        except ValueError:  # a product of two dims: any point
            asked = []
        return isl.make_map(mine.dims, out, [*ends, *asked, *self.limits], tuple(self.open))

    def of_read(self, node: Node, index: int) -> isl.Set:
        """The points of a source that an operand asks for."""
        ref, mine = node.args[index], self.asked[node.name]
        source = self.graph[ref.name].domain
        same = ref.index == source.identity and source == node.domain
        if same and merge_condition(node, index) is None:
            return mine
        return mine.apply(self.relation(node, index))

    def settled(self, part: Collection[str], most: float) -> bool:
        """Let equations ask each other for points, and tell whether that comes to an end.

        What is asked of one may grow so many times; by `inf`, a limit is lost each time it does.
        """
        todo, rounds, within = deque(part), dict.fromkeys(part, 0), {*part}
        while todo:
            reader = self.graph[todo.popleft()]
            for k, a in enumerate(reader.args):
                source = a.name
                done = source in self.all or source not in within
                if done or rounds[source] > most:
                    continue
                if self.ask(source, self.of_read(reader, k), widely=most == inf):
                    rounds[source] += source not in self.all
                    todo.append(source)
        return max(rounds.values()) <= most

    def close(self, part: Collection[str]) -> None:
        """All that equations ask of each other, by elimination of one after the other."""
        part = [n for n in part if n not in self.all]
        if len(part) > MAX_CLOSED_EQUATIONS:
            self.settled(part, most=inf)
            return
        left = self.edges(part)
        gone = [(name, *self.eliminate(name, left)) for name in part]
        for name, steps, into in reversed(gone):
            for reader, m in into.items():
                self.ask(name, self.asked[reader].apply(m))
            self.repeat(name, steps)

    def edges(self, part: Collection[str]) -> Edges:
        out: Edges = {}
        for reader in part:
            for k, a in enumerate(self.graph[reader].args):
                if a.name in part:
                    _add(out, (reader, a.name), self.relation(self.graph[reader], k))
        return out

    def eliminate(self, name: str, left: Edges) -> tuple[isl.Map | None, Mapping[str, isl.Map]]:
        """Asks what an equation asks of those that are left, and lets its readers ask it of them.

        Return what it asks of itself in some steps, and what readers that are left ask of it.
        """
        own = left.pop((name, name), None)
        steps = None if own is None else isl.closure(isl.simple_map(own, MAX_CLOSED_PARTS))
        self.repeat(name, steps)
        into = {reader: left.pop((reader, name)) for reader, x in [*left] if x == name}
        for source in [x for reader, x in left if reader == name]:
            m = left.pop((name, source))
            self.ask(source, self.asked[name].apply(m))
            through = m if steps is None else m.union(steps.apply_range(m))
            for reader, before in into.items():
                _add(left, (reader, source), before.apply_range(through))
        return steps, into

    def ask(self, name: str, points: isl.Set, widely: bool = False) -> bool:
        """Asks for points of an equation; tells whether some of them are new."""
        new, have = points.intersect(self.whole[name]), self.asked[name]
        if new.is_subset(have):
            return False
        if widely:
            self.asked[name] = isl.widened(have, new).intersect(self.whole[name])
        else:
            self.asked[name] = isl.simple_set(have.union(new).coalesce(), MAX_SET_PARTS)
        if self.whole[name].is_subset(self.asked[name]):
            self.all.add(name)
        return True

    def repeat(self, name: str, steps: isl.Map | None) -> None:
        """Asks what an equation asks of itself."""
        if steps is not None:
            self.ask(name, self.asked[name].apply(steps))


def _add(edges: Edges, edge: tuple[str, str], relation: isl.Map) -> None:
    both = edges[edge].union(relation).coalesce() if edge in edges else relation
    edges[edge] = isl.simple_map(both, MAX_SET_PARTS)
