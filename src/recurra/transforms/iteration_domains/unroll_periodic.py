"""A dim whose points differ in turns is counted in rounds; each turn has its own equations.

    x[l<L] = merge(x0, y[l-1], when=(l == 0, l > 0))       x_0[lr<L/2] = merge(x0, y_1[lr-1], ..)
    y[l<L] = merge(f, g, when=(l%2 == 0, l%2 == 1))    →   y_0[lr<L/2] = f_0[lr]
    f[l<L] = sum(k[l,0:t+1])                               x_1[lr<L/2] = y_0[lr]
    g[l<L] = sum(k[l,max(t-8,0):t+1])                      y_1[lr<L/2] = g_1[lr]

What is read of k_0 is all of the past, of k_1 a window: each has the store that its own readers
ask for. Choices between turns are made here, and what no turn takes is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, lcm
from typing import Any

from recurra.cost.thresholds import MAX_ROUND_TURNS
from recurra.ir.bind import bind
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
from recurra.polyhedral.dependence import happens
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel


def rounds(graph: Graph, sizes: Mapping[str, int]) -> tuple[Graph, list[str]]:
    """The graph with every such dim in rounds, and what was decided."""
    why: list[str] = []
    for r in [d.range for d in graph.dims]:
        work = _in_turns(graph, r, sizes)
        if work.fits() and fuel().burn("points in turns → rounds", r.dim):
            graph = work.made()
            why.append(f"{r.dim}: in rounds of {work.n}, each turn by equations of its own")
    return graph, why


def _in_turns(graph: Graph, extent: Range, sizes: Mapping[str, int]) -> _Rounds:
    bound = {extent.hi.name: extent.size(sizes)} if isinstance(extent.hi, Sym) else {}
    return _Rounds(bind(graph, bound), extent, turns(graph, extent.dim), sizes)


def turns(graph: Graph, dim: str) -> int:
    """After how many points of a dim the choices between branches are the same again."""
    found = [
        e.n
        for n in graph.nodes.values()
        if isinstance(n.op, Merge) and dim in n.op.mentions()
        for when in n.op.when
        for e in walk(when)
        if isinstance(e, Modulo) and e.a == Sym(dim)
    ]
    return lcm(*found)


@dataclass
class _Rounds:
    """One dim in rounds of `n` points."""

    graph: Graph
    r: Range
    n: int
    sizes: Mapping[str, int]
    names: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])

    @cached_property
    def rounds(self) -> Dim:
        return self.graph.fresh_dim(
            Role.ROUNDS, self.r.dim, -(-self.r.size(self.sizes) // self.n), taken=self.sizes
        )

    @property
    def dim(self) -> str:
        return self.rounds.name

    def over(self, node: Node) -> bool:
        return self.r.dim in node.domain

    def fits(self) -> bool:
        """Is it a dim of several rounds, whose points are read one at a time, by known turns?"""
        known = self.r.lo == 0 and not self.r.mentions() - self.sizes.keys()
        if not known or not 1 < self.n <= min(MAX_ROUND_TURNS, self.r.size(self.sizes) // 2):
            return False
        if any(self.over(self.graph[o]) for o in self.graph.outputs) or not self.pays():
            return False
        return all(map(self.plain, self.graph.nodes.values()))

    def pays(self) -> bool:
        """Is something over the dim read by several ranges, for which turns may keep less?"""
        ranges = (
            {(a.slices) for n, k in self.graph.readers[x.name] if (a := n.args[k]).slices}
            for x in self.graph.nodes.values()
            if self.over(x)
        )
        return any(len(found) > 1 for found in ranges)

    def plain(self, node: Node) -> bool:
        """Can an equation be said turn by turn?"""
        mine = [x for x in node.domain if x.dim == self.r.dim]
        apart = isinstance(node.op, (Call, Going))
        if any(x.mentions() - self.sizes.keys() for x in mine) or (mine and apart):
            return False
        every = range(self.n) if mine else (0,)
        for a in node.args:
            source = self.graph[a.name].domain
            if self.r.dim in source:
                e = a.index[source.dims.index(self.r.dim)]
                if isinstance(e, Slice) or not all(self.turn(e, k) is not None for k in every):
                    return False
            others = zip(a.index, source, strict=True)
            if any(self.r.dim in index_symbols(e) for e, x in others if x.dim != self.r.dim):
                return False
        return True

    # ---- points

    def by(self, turn: int) -> dict[str, Expr | int]:
        """The point of a turn, of its round."""
        return {self.r.dim: lin([(Sym(self.dim), self.n), (turn, 1)])}

    def turn(self, expr: Expr | int, reader: int) -> tuple[int, Expr | int] | None:
        """(turn, round) of an index, as the turn `reader` reads it; None: of no one turn."""
        at = substitute(expr, self.by(reader))
        turn = mod(at, self.n)
        return (turn, div(at, self.n)) if isinstance(turn, int) else None

    def range(self, extent: Range, turn: int) -> Range:
        """The rounds in which there is such a point."""
        lo, hi = (evaluate(e, self.sizes) - turn for e in (extent.lo, extent.hi))
        return Range(self.dim, max(-(-hi // self.n), 0), max(-(-lo // self.n), 0))

    # ---- equations

    def made(self) -> Graph:
        nodes: dict[str, Node] = {}
        for n in self.graph.nodes.values():
            for turn in range(self.n) if self.over(n) else (0,):
                new = self.node(n, turn)
                nodes[new.name] = new
        dims = tuple(self.rounds if d.name == self.r.dim else d for d in self.graph.dims)
        return Graph(nodes, self.graph.outputs, dims).live()

    def name(self, name: str, turn: int) -> str:
        if not self.over(self.graph[name]):
            return name
        if (name, turn) not in self.names:
            taken = {*self.graph.nodes, *self.names.values()}
            self.names[name, turn] = fresh_name(f"{name}_{turn}", taken)
        return self.names[name, turn]

    def node(self, node: Node, turn: int) -> Node:
        by = self.by(turn) if self.over(node) else {}
        domain = Domain(
            tuple(self.range(r, turn) if r.dim == self.r.dim else r for r in node.domain)
        )
        args = tuple(self.read(a, turn) for a in node.args)
        op, locs = node.op.at(by), node.locs
        if isinstance(op, Input) and by:
            at = op.at_ or tuple(substitute(x.sym, by) for x in node.domain)
            op = replace(op, of=op.of or node.name, at_=at)
        if isinstance(op, Merge) and by:
            when = [reduced(c) for c in op.when]
            kept = [k for k, c in enumerate(when) if happens(domain, c)]
            op, args = Merge(when=tuple(when[k] for k in kept)), tuple(args[k] for k in kept)
            locs = tuple(locs[k] for k in kept) if locs else ()
        type_ = node.type.at(by) if isinstance(node.type, Type) and by else node.type
        assert isinstance(type_, (Type, Tuple))
        return replace(
            node,
            name=self.name(node.name, turn),
            op=op,
            args=args,
            domain=domain,
            type=type_,
            locs=locs,
        )

    def read(self, ref: Ref, turn: int) -> Ref:
        source = self.graph[ref.name].domain
        if self.r.dim not in source:
            return ref
        k = source.dims.index(self.r.dim)
        e = ref.index[k]
        assert not isinstance(e, Slice)
        found = self.turn(e, turn)
        assert found is not None
        theirs, at = found
        return Ref(self.name(ref.name, theirs), (*ref.index[:k], at, *ref.index[k + 1 :]))


def reduced(condition: Expr | int) -> Any:
    """A condition with common factors taken out: 2*r == 2 is r == 1, 2*r < 3 is r < 2."""
    if (
        not isinstance(condition, Cmp)
        or not isinstance(condition.a, Lin)
        or not isinstance(condition.b, int)
    ):
        return rebuild(condition, reduced)
    n = gcd(*(k for _, k in condition.a.terms))
    a = lin([(e, k // n) for e, k in condition.a.terms])
    if n == 1 or condition.a.const:
        return condition
    match condition.op:
        case "==" | "!=":
            none = Logic("|" if condition.op == "==" else "&", ())
            return compare(condition.op, a, condition.b // n) if condition.b % n == 0 else none
        case "<" | ">=":
            return compare(condition.op, a, -(-condition.b // n))
        case _:
            return compare(condition.op, a, condition.b // n)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether the points of a dim differ in turns, and stores of each keep less."""
    differ = (d.range for d in graph.dims if turns(graph, d.name) > 1)
    return any(_in_turns(graph, r, cx.sizes).fits() for r in differ)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Count dims whose points differ in turns, such as layers, in rounds of such turns."""
    new, decided = rounds(graph, cx.sizes)
    cx.remark(*decided)
    return new


UNROLL_PERIODIC = Pass("unroll_periodic", run, applies)
