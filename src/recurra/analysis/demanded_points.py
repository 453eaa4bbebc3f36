"""Demand analysis: the points of every equation that are demanded, backward from the outputs.

    y[t<T] = merge(e[t], y[t-1], when=(t % 50 == 0, t % 50 != 0))     e: at t % 50 == 0
    z = x[T-1]                                                        x: at t == T-1

A point is demanded if a demanded point of another equation reads it, under the condition of its
branch. Reads that a condition cannot express (a moving range, an index by //) are widened to all
points from the least to the greatest: the result may be too wide, never too narrow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from recurra.cost.thresholds import MAX_COMPARISONS, MAX_DEMAND_ROUNDS
from recurra.ir.expr import (
    FALSE,
    TRUE,
    Cmp,
    Expr,
    Logic,
    Product,
    all_of,
    any_of,
    between,
    compare,
    lin,
    negate,
    substitute,
    symbols,
    walk,
)
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, merge_condition
from recurra.ir.order import postorder
from recurra.ir.types import Domain, Range, is_shift
from recurra.ops.control import Merge
from recurra.ops.elementwise import Going
from recurra.ops.source import Input
from recurra.polyhedral import isl
from recurra.polyhedral.boxes import bounding_domain, simplified
from recurra.polyhedral.interval import box_of, span


def demanded(
    graph: Graph,
    sizes: Mapping[str, int],
    already: Mapping[str, Expr] = MappingProxyType({}),
    ends: bool = True,
    taken: Mapping[str, Expr] | None = None,
) -> Mapping[str, Expr]:
    """Return the condition under which each equation is demanded, if it is not always.

    `sizes` are the known bounds; conditions that hold throughout the domain are dropped. A point at
    either end of a domain that no index reaches (the last of x, in x[t-1]) counts as demanded.
    Points under a condition in `already` are demanded whether read or not; so are, with `ends`, the
    equations that tell where rows end, because the loop reads them. `taken` is the result of
    `branch_conditions`, if it is known.
    """
    effects = [n.name for n in graph.nodes.values() if not n.op.pure]
    taken = branch_conditions(graph) if effects and taken is None else taken or {}
    found = {**already, **{n: taken.get(n, TRUE) for n in effects}}
    return _Demand(graph, sizes, by_index=True, ends=ends, found=found).solved()


def branch_conditions(graph: Graph) -> Mapping[str, Expr]:
    """Return the condition under which a branch takes each equation, if it is not always taken.

    Unlike `demanded`, points that no index reads count as taken: this is where effects happen.
    """
    return _Demand(graph, {}, by_index=False).solved()


def is_even(graph: Graph, dim: str) -> bool:
    """Are all points of a dim demanded alike, by a quick sufficient test?

    No branch depends on the dim, and every read along it is a shift or the whole range: then no
    condition of `demanded` mentions the dim.
    """
    for n in graph.nodes.values():
        if isinstance(n.op, Merge) and dim in n.op.mentions():
            return False
        for a in n.args:
            for e, r in zip(a.index, graph[a.name].domain, strict=True):
                if r.dim == dim and not _is_even_read(e, r, n.domain):
                    return False
    return True


def _is_even_read(index: Index, extent: Range, reader: Domain) -> bool:
    """Does an index read all of a range, or a shift of the reader's equal range?"""
    if isinstance(index, Slice):
        return (index.lo, index.hi) == (extent.lo, extent.hi)
    return (
        is_shift(index, extent.dim) is not None
        and extent.dim in reader
        and reader[extent.dim] == extent
    )


@dataclass
class _Demand:
    """A fixed-point iteration over reads; `found` has the condition of each equation so far."""

    graph: Graph
    sizes: Mapping[str, int]
    by_index: bool
    ends: bool = True
    found: dict[str, Expr] = field(default_factory=dict[str, Expr])
    updates: dict[str, int] = field(default_factory=dict[str, int])
    already: dict[str, Expr] = field(default_factory=dict[str, Expr])
    upper: dict[str, Expr] = field(default_factory=dict[str, Expr])  # results of `at_most`
    widened: set[str] = field(default_factory=set[str])  # at their upper bound

    def solved(self) -> Mapping[str, Expr]:
        self.already = dict(self.found)
        roots = [n.name for n in self.graph.nodes.values() if self.is_root(n)]
        todo = deque(roots)
        todo.extendleft(self.found.keys() - todo)
        self.found |= dict.fromkeys(roots, TRUE)
        done: dict[str, Expr] = {}
        while todo:
            n = self.graph[todo.pop()]
            if done.get(n.name) == self.found[n.name]:  # it has been in the queue twice
                continue
            done[n.name] = self.found[n.name]
            for k, a in enumerate(n.args):
                if self.found.get(a.name) == TRUE or a.name in self.widened:
                    continue
                of_read = self.of_read(n, k, a, self.found[n.name])
                more = _joined(self.found.get(a.name, FALSE), of_read)
                if more != self.found.get(a.name, FALSE):
                    self.updates[a.name] = self.updates.get(a.name, 0) + 1
                    is_long = _comparisons(more) > MAX_COMPARISONS
                    if is_long or self.updates[a.name] > MAX_DEMAND_ROUNDS:
                        self.widened.add(a.name)
                        more = TRUE if self.by_index else self.at_most(a.name)
                    self.found[a.name] = more  # TRUE goes first, as most reads demand all points
                    (todo.append if more == TRUE else todo.appendleft)(a.name)
        if self.by_index:  # equations that were never reached are not demanded
            self.found = dict.fromkeys(self.graph.nodes, FALSE) | self.found
        return {name: c for name, c in self.found.items() if c != TRUE}

    def at_most(self, name: str) -> Expr:
        """An upper bound of the demand: the demand if every point of all choices is demanded."""
        if name not in self.upper:
            for n in postorder([name], self.plain_readers):
                more = TRUE if self.is_root(self.graph[n]) else self.already.get(n, FALSE)
                for reader, k in self.graph.readers[n]:
                    of_reader = self.upper.get(reader.name, TRUE)
                    more = _joined(more, self.of_read(reader, k, reader.args[k], of_reader))
                self.upper[n] = TRUE if _comparisons(more) > MAX_COMPARISONS else more
        return self.upper[name]

    def plain_readers(self, name: str) -> Iterator[str]:
        """The readers of an equation, except choices, through which every recurrence passes."""
        return (r.name for r, _ in self.graph.readers[name] if not isinstance(r.op, Merge))

    def is_root(self, node: Node) -> bool:
        """Is it demanded whether it is read or not?"""
        unread = not node.op.pure and not self.graph.readers[node.name]
        ends = self.ends and isinstance(node.op, Going)
        return node.name in self.graph.outputs or unread or ends or isinstance(node.op, Input)

    def of_read(self, node: Node, index: int, ref: Ref, of_node: Expr) -> Expr:
        """The points of a source that an operand demands, with its reader demanded at `of_node`."""
        source, reader = self.graph[ref.name].domain, node.domain
        branch = merge_condition(node, index)
        if branch is None and ref.index == source.identity and reader == source:
            return of_node
        conditions = [of_node, branch or TRUE]  # on points of the reader
        if branch is not None and simplified(reader, all_of(*conditions), self.sizes) == FALSE:
            return FALSE
        if not self.by_index:
            return self.mapped(all_of(*conditions), reader, _moved(ref, source, reader), source)
        inverse: dict[str, Expr | int] = {}  # dims of the reader, in those of the source
        ends: list[Expr] = []
        ranges: list[tuple[Slice, Range]] = []
        for e, r in zip(ref.index, source, strict=True):
            dim = next((d for d in reader.dims if is_shift(e, d) is not None), None)
            if isinstance(e, Slice):
                ranges += [] if (e.lo, e.hi) == (r.lo, r.hi) else [(e, r)]
            elif dim is not None and dim not in inverse:
                inverse[dim] = lin([(r.sym, 1), (is_shift(e, dim) or 0, -1)])
                conditions += reader[dim].edges if reader[dim] != r else ()
            elif not symbols(e) & set(reader.dims):
                ends.append(compare("==", r.sym, e))
            else:  # from its least to its greatest point
                ranges.append((Slice(e, lin([(e, 1), (1, 1)])), r))
        for e, r in ranges:
            ends += self.reach(e, r, node.domain, conditions, inverse)
        mapped = self.mapped(all_of(*conditions), reader, inverse)
        return simplified(source, all_of(mapped, *ends), self.sizes)

    def reach(
        self,
        slice_: Slice,
        extent: Range,
        reader: Domain,
        conditions: list[Expr],
        inverse: Mapping[str, Expr | int],
    ) -> list[Expr]:
        """The conditions that a point of the source lies in a slice, over all points of a reader.

        They are exact if the source has the dims that the slice depends on; otherwise they bound
        the least and the greatest point.
        """
        if (symbols(slice_.lo) | symbols(slice_.hi)) & set(reader.dims) <= inverse.keys():
            ends = (substitute(e, inverse) for e in (slice_.lo, slice_.hi))
            return [*between(extent.sym, *ends)]
        lo, hi = substitute(slice_.lo, self.sizes), substitute(slice_.hi, self.sizes)
        box = box_of(reader, self.sizes)
        if box is not None:  # the demanded points of the reader
            box = box_of(bounding_domain(reader, all_of(*conditions), self.sizes), self.sizes)
        if box is None or any(isinstance(x, Product) for y in (lo, hi) for x in walk(y)):
            return []
        if (symbols(lo) | symbols(hi)) - box.keys():
            return []
        return [*between(extent.sym, span(lo, box)[0], span(hi, box)[1])]

    def mapped(
        self,
        condition: Expr,
        domain: Domain,
        inverse: Mapping[str, Expr | int],
        source: Domain | None = None,
    ) -> Expr:
        """Translate a condition on points of a reader to points of its source, or widen it.

        Parts that always hold on `source`, if one is given, are dropped.
        """
        if isinstance(condition, Logic) and condition.op == "&":
            return all_of(*(self.mapped(x, domain, inverse, source) for x in condition.args))
        if not symbols(condition) & set(domain.dims) <= inverse.keys():
            return TRUE
        found = substitute(condition, inverse)
        is_new = source is not None and found not in (condition, TRUE, FALSE)
        return TRUE if is_new and isl.always(found, source) else found


def _moved(ref: Ref, source: Domain, reader: Domain) -> Mapping[str, Expr | int]:
    """The dims of a reader in terms of those of its source, for reads by shifts."""
    out: dict[str, Expr | int] = {}
    for e, r in zip(ref.index, source, strict=True):
        shift = None if isinstance(e, Slice) or r.dim not in reader else is_shift(e, r.dim)
        if shift is not None:
            out[r.dim] = lin([(r.sym, 1), (shift, -1)])
    return out


def _comparisons(condition: Expr) -> int:
    return sum(isinstance(e, Cmp) for e in walk(condition))


def _joined(left: Expr, right: Expr) -> Expr:
    """The disjunction, without redundant parts: x | (x & y) is x, and x | ~x is true."""
    if left in (right, FALSE):
        return right
    parts = [
        p for c in (left, right) for p in (c.args if isinstance(c, Logic) and c.op == "|" else (c,))
    ]
    if any(negate(p) in parts for p in parts):
        return TRUE
    sets = [frozenset(p.args if isinstance(p, Logic) and p.op == "&" else (p,)) for p in parts]
    kept = [p for p, part in zip(parts, sets, strict=True) if not any(x < part for x in sets)]
    return any_of(*kept)
