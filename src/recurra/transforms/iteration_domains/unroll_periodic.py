"""Unroll a dim whose points alternate between definitions: one equation for each turn.

    x[l<L] = merge(x0, y[l-1], when=(l == 0, l > 0))       x_0[lr<L/2] = merge(x0, y_1[lr-1], ..)
    y[l<L] = merge(f, g, when=(l%2 == 0, l%2 == 1))    →   y_0[lr<L/2] = f_0[lr]
    f[l<L] = sum(k[l,0:t+1])                               x_1[lr<L/2] = y_0[lr]
    g[l<L] = sum(k[l,max(t-8,0):t+1])                      y_1[lr<L/2] = g_1[lr]

The dim counts rounds of n turns, n the period. All of the past of k_0 is read, but only a window of
k_1: each gets the store that its own readers need. Choices between turns are made at compile time,
and what no turn reads is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, lcm
from typing import Any

from recurra.cost.thresholds import MAX_ROUND_TURNS
from recurra.ir.bind import bind_bounds
from recurra.ir.dims import Dim, Role
from recurra.ir.expr import (
    Cmp,
    Expr,
    Lin,
    Logic,
    Modulo,
    Sym,
    compare,
    div,
    evaluate,
    lin,
    mod,
    rebuild,
    substitute,
    walk,
)
from recurra.ir.graph import Graph, Node, Ref, Slice, fresh_name, index_symbols
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.control import Call, Merge
from recurra.ops.elementwise import Going
from recurra.ops.source import Input
from recurra.polyhedral.dependence import is_feasible
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel


def period(graph: Graph, dim: str) -> int:
    """The number of points of a dim after which choices between branches repeat."""
    return lcm(
        *(
            e.n
            for n in graph.nodes.values()
            if isinstance(n.op, Merge) and dim in n.op.mentions()
            for when in n.op.when
            for e in walk(when)
            if isinstance(e, Modulo) and e.a == Sym(dim)
        )
    )


def _in_rounds(graph: Graph, extent: Range, sizes: Mapping[str, int]) -> _Rounds:
    bound = {extent.hi.name: extent.size(sizes)} if isinstance(extent.hi, Sym) else {}
    return _Rounds(bind_bounds(graph, bound), extent, period(graph, extent.dim), sizes)


@dataclass
class _Rounds:
    """A dim of range `r` in rounds of `n` points."""

    graph: Graph
    r: Range
    n: int
    sizes: Mapping[str, int]
    names: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])

    @cached_property
    def rounds(self) -> Dim:
        """The dim that counts rounds."""
        count = -(-self.r.size(self.sizes) // self.n)
        return self.graph.fresh_dim(Role.ROUNDS, self.r.dim, count, taken=self.sizes)

    def is_over(self, node: Node) -> bool:
        return self.r.dim in node.domain

    def fits(self) -> bool:
        """Tell whether there are several rounds, and every read is of one known turn."""
        known = self.r.lo == 0 and not self.r.mentions() - self.sizes.keys()
        if not known or not 1 < self.n <= min(MAX_ROUND_TURNS, self.r.size(self.sizes) // 2):
            return False
        if any(self.is_over(self.graph[o]) for o in self.graph.outputs) or not self.is_profitable():
            return False
        return all(map(self.can_unroll, self.graph.nodes.values()))

    def is_profitable(self) -> bool:
        """Tell whether readers of an equation read several ranges, so that turns may store less."""
        ranges = (
            {(a.slices) for n, k in self.graph.readers[x.name] if (a := n.args[k]).slices}
            for x in self.graph.nodes.values()
            if self.is_over(x)
        )
        return any(len(found) > 1 for found in ranges)

    def can_unroll(self, node: Node) -> bool:
        """Tell whether an equation can be split by turns."""
        mine = [x for x in node.domain if x.dim == self.r.dim]
        fixed = isinstance(node.op, (Call, Going))
        if any(x.mentions() - self.sizes.keys() for x in mine) or (mine and fixed):
            return False
        turns = range(self.n) if mine else (0,)
        for a in node.args:
            for e, x in zip(a.index, self.graph[a.name].domain, strict=True):
                if x.dim != self.r.dim and self.r.dim in index_symbols(e):
                    return False
                if x.dim == self.r.dim and (
                    isinstance(e, Slice) or any(self.turn_of(e, k) is None for k in turns)
                ):
                    return False
        return True

    # ---- points

    def point(self, turn: int) -> dict[str, Expr | int]:
        """The dim in terms of the round, at a turn of it."""
        return {self.r.dim: lin([(self.rounds.range.sym, self.n), (turn, 1)])}

    def turn_of(self, expr: Expr | int, reader: int) -> tuple[int, Expr | int] | None:
        """The (turn, round) of an index that the turn `reader` reads; None if it varies."""
        at = substitute(expr, self.point(reader))
        turn = mod(at, self.n)
        return (turn, div(at, self.n)) if isinstance(turn, int) else None

    def range(self, extent: Range, turn: int) -> Range:
        """The rounds in which a turn has a point."""
        lo, hi = (evaluate(e, self.sizes) - turn for e in (extent.lo, extent.hi))
        return Range(self.rounds.name, max(-(-hi // self.n), 0), max(-(-lo // self.n), 0))

    # ---- equations

    def unrolled(self) -> Graph:
        """The graph with an equation for each turn."""
        nodes: dict[str, Node] = {}
        for n in self.graph.nodes.values():
            for turn in range(self.n) if self.is_over(n) else (0,):
                new = self.node(n, turn)
                nodes[new.name] = new
        dims = tuple(self.rounds if d.name == self.r.dim else d for d in self.graph.dims)
        return Graph(nodes, self.graph.outputs, dims).live()

    def name(self, name: str, turn: int) -> str:
        """The name of an equation at a turn."""
        if not self.is_over(self.graph[name]):
            return name
        if (name, turn) not in self.names:
            taken = {*self.graph.nodes, *self.names.values()}
            self.names[name, turn] = fresh_name(f"{name}_{turn}", taken)
        return self.names[name, turn]

    def node(self, node: Node, turn: int) -> Node:
        """An equation at a turn."""
        by = self.point(turn) if self.is_over(node) else {}
        domain = Domain(
            tuple(self.range(r, turn) if r.dim == self.r.dim else r for r in node.domain)
        )
        args = tuple(self.read(a, turn) for a in node.args)
        name, op, locs, type_ = self.name(node.name, turn), node.op.at(by), node.locs, node.type
        if isinstance(op, Input) and by:
            at = op.at_ or tuple(substitute(x.sym, by) for x in node.domain)
            op = replace(op, of=op.of or node.name, at_=at)
        if isinstance(op, Merge) and by:
            when = [reduced(c) for c in op.when]
            live = [k for k, c in enumerate(when) if is_feasible(domain, c)]
            op, args = Merge(when=tuple(when[k] for k in live)), tuple(args[k] for k in live)
            locs = tuple(locs[k] for k in live) if locs else ()
        if isinstance(type_, Type) and by:
            type_ = type_.at(by)
        assert isinstance(type_, (Type, Tuple))
        return replace(node, name=name, op=op, args=args, domain=domain, type=type_, locs=locs)

    def read(self, ref: Ref, turn: int) -> Ref:
        """A read by an equation at a turn."""
        source = self.graph[ref.name].domain
        if self.r.dim not in source:
            return ref
        k = source.dims.index(self.r.dim)
        e = ref.index[k]
        assert not isinstance(e, Slice)
        found = self.turn_of(e, turn)
        assert found is not None
        return replace(ref, name=self.name(ref.name, found[0])).with_index(k, found[1])


def reduced(condition: Expr | int) -> Any:
    """A condition with common factors taken out: 2*r == 2 is r == 1, 2*r < 3 is r < 2."""
    match condition:
        case Cmp(op=op, a=Lin(terms=terms, const=0), b=int(b)):
            n = gcd(*(k for _, k in terms))
            a = lin([(e, k // n) for e, k in terms])
            if n == 1:
                return condition
        case Cmp(a=Lin(), b=int()):
            return condition
        case _:
            return rebuild(condition, reduced)
    match op:
        case "==" | "!=" if b % n:
            return Logic("|" if op == "==" else "&", ())
        case "<" | ">=":
            return compare(op, a, -(-b // n))
        case _:
            return compare(op, a, b // n)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether points of a dim alternate between definitions, and that saves memory."""
    differ = (d.range for d in graph.dims if period(graph, d.name) > 1)
    return any(_in_rounds(graph, r, cx.sizes).fits() for r in differ)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Unroll dims whose points alternate between definitions, such as layers, by their period."""
    for r in [d.range for d in graph.dims]:
        work = _in_rounds(graph, r, cx.sizes)
        if work.fits() and fuel().burn("points in turns → rounds", r.dim):
            graph = work.unrolled()
            cx.remark(f"{r.dim}: in rounds of {work.n}, each turn by equations of its own")
    return graph


UNROLL_PERIODIC = Pass("unroll_periodic", run, applies)
