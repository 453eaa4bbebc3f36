"""Index-set splitting: cut a merge where its branches change along a dim that becomes an axis.

    u[t<T,i<I] = merge(u0[i], c, v[t,i], when=(t == 0, (t >= 1) & (i == 0), (t >= 1) & (i >= 1)))
 →  u[t<T,i<I] = merge(u0[i], u_rest[t,i], when=(t == 0, t >= 1))
    u_rest[1<=t<T,i<I] = merge(u_part[t,i], v[t,i], when=(i < 1, i >= 1))
    u_part[1<=t<T,i<1] = c

With i as an axis `u_rest` is a concatenation, and nothing is chosen point by point (Griebl,
Feautrier and Lengauer, 2000).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from recurra.cost.thresholds import MAX_BRANCH_PIECES
from recurra.ir.expr import (
    FALSE,
    TRUE,
    Expr,
    all_of,
    compare,
    evaluate,
    negate,
    substitute,
    symbols,
)
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.types import Domain, Range
from recurra.ops.control import Merge
from recurra.polyhedral.boxes import Box, fold_condition, simplified, split_boxes


def split_index_sets(
    graph: Graph, dim: str, names: Collection[str], sizes: Mapping[str, int]
) -> tuple[Graph, Mapping[str, str]]:
    """Return the graph with some merges cut along a dim, and the equation that joins each one's
    pieces.

    Merges whose branches are not intervals of the dim, or too many, stay as they are.
    """
    nodes: dict[str, Node] = {}
    joined: dict[str, str] = {}
    for n in graph.nodes.values():
        found = _Cutter(graph, dim, sizes, n, set(nodes)).cut() if n.name in names else None
        if found is None:
            nodes[n.name] = n
        else:
            pieces, joined[n.name] = found
            nodes |= {m.name: m for m in pieces}
    return replace(graph, nodes=nodes), joined


def is_concatenation(graph: Graph, node: Node, dim: str) -> bool:
    """Tell whether the branches of a merge are consecutive intervals of a dim, read in place."""
    if not isinstance(node.op, Merge) or dim not in node.op.mentions():
        return False
    at = node.domain[dim].lo
    for a in node.args:
        source = graph[a.name].domain
        if source.dims != node.domain.dims or not graph.is_identity(a) or source[dim].lo != at:
            return False
        at = source[dim].hi
    return at == node.domain[dim].hi


@dataclass
class _Cutter:
    """The cut of one merge along a dim."""

    graph: Graph
    dim: str
    sizes: Mapping[str, int]
    node: Node
    taken: set[str]

    def cut(self) -> tuple[list[Node], str] | None:
        """Cut the branches that depend on the dim; None if their ends are not known.

        Returns the equations in place of the merge, and the name of that which joins the pieces.
        Branches that do not depend on the dim stay in front; the pieces share the rest.
        """
        n, op = self.node, self.node.op
        assert isinstance(op, Merge)
        outer = [k for k, c in enumerate(op.when) if self.dim not in symbols(c)]
        left = split_boxes(n.domain, all_of(*(negate(op.when[k]) for k in outer)), self.sizes)
        if len(left) != 1 or left[0].where != TRUE:
            outer, left = [], (Box(n.domain),)
        domain = left[0].domain
        pieces = list(self.pieces([k for k in range(len(op.when)) if k not in outer], domain))
        if not pieces:
            return None
        new: list[Node] = []
        last = pieces[0]  # if it is the only one, no branch begins or ends inside
        if len(pieces) > 1:
            parts = [self.graph[p.args[0].name] if self.is_copy(p) else p for p in pieces]
            new = [p for p in parts if p.name not in self.graph.nodes]
            last = self.merge("rest", *_reads(parts, domain), domain)
        if not outer:
            return [*new, replace(last, name=n.name)], n.name
        mine, others = _reads([last], n.domain)
        args, when = (*(n.args[k] for k in outer), *mine), (*(op.when[k] for k in outer), *others)
        whole = replace(n, op=Merge(when=when), args=args, locs=())
        return [*new, last, whole], last.name

    def pieces(self, branches: list[int], domain: Domain) -> Iterator[Node]:
        """Yield an equation for each interval of the dim in which no branch begins or ends."""
        ends: dict[int, Expr | int] = {}
        for k in branches:
            for box in split_boxes(domain, self.when(k), self.sizes):
                r = box.domain[self.dim]
                if self.dim in symbols(box.where) or r.mentions() & set(domain.dims):
                    return
                ends |= {evaluate(e, self.sizes): e for e in (r.lo, r.hi)}
        order = sorted(ends)
        if len(order) <= MAX_BRANCH_PIECES + 1:
            for lo, hi in pairwise(order):
                part = domain.with_range(Range(self.dim, ends[hi], ends[lo]))
                yield self.piece(branches, part)

    def piece(self, branches: list[int], domain: Domain) -> Node:
        """The merge in one interval of the dim."""
        at = {self.dim: domain[self.dim].lo}
        found = {k: simplified(domain, substitute(self.when(k), at), self.sizes) for k in branches}
        found = {k: fold_condition(domain, c, self.sizes) for k, c in found.items()}
        found = {k: c for k, c in found.items() if c != FALSE}
        args = tuple(self.node.args[k] for k in found)
        return self.merge("part", args, tuple(found.values()), domain)

    def when(self, branch: int) -> Expr:
        assert isinstance(self.node.op, Merge)
        return self.node.op.when[branch]

    def is_copy(self, piece: Node) -> bool:
        """Tell whether a piece equals an equation that it reads."""
        a = piece.args[0]
        whole = self.graph.is_identity(a) and self.graph[a.name].domain == piece.domain
        return whole and len(piece.args) == 1

    def merge(
        self, stem: str, args: tuple[Ref, ...], when: tuple[Expr, ...], domain: Domain
    ) -> Node:
        """A merge of some branches over a part of the domain."""
        name = self.graph.fresh(f"{self.node.name}_{stem}", self.taken)
        self.taken.add(name)
        return replace(self.node, name=name, op=Merge(when=when), args=args, domain=domain, locs=())


def _reads(parts: Sequence[Node], whole: Domain) -> tuple[tuple[Ref, ...], tuple[Expr, ...]]:
    """Reads of equations over parts of a domain, and the conditions of these parts."""
    args = tuple(Ref(p.name, p.domain.identity) for p in parts)
    return args, tuple(_inside_condition(p.domain, whole) for p in parts)


def _inside_condition(part: Domain, whole: Domain) -> Expr:
    """The condition that a point of a domain is one of a part of it."""
    ends: list[Expr] = []
    for r in part:
        ends += [] if r.lo == whole[r.dim].lo else [compare(">=", r.sym, r.lo)]
        ends += [] if r.hi == whole[r.dim].hi else [compare("<", r.sym, r.hi)]
    return all_of(*ends)
