"""A range of the past has more points, and what is reduced over it leaves these out.

    s[t<T] = mul(q, x[max(t-5,0):t+1], ..)     s[t<T] = mul(q, x[4*(max(t-5,0)//4):t+1], ..)
    y[t<T] = sum(s, axes=(0,))             →   seen[t<T] = less_equal(first, at[4*(..):t+1])
                                               y[t<T] = sum(where(seen, s, 0), axes=(0,))

So ranges begin where tiles do, are of all points instead of every n-th, or of as many of the first
as there ever are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from recurra.ir.expr import Expr, Sym
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import LETTERS, join_labels
from recurra.ir.order import topological
from recurra.ir.types import Domain, Type
from recurra.ops.contraction import Einsum
from recurra.ops.elementwise import And, Equal, Exp, LessEqual, Sub, Where
from recurra.ops.reduction import Max, identity
from recurra.ops.source import Const, Value
from recurra.transforms.growing_ranges import Growing, GrowingAxes
from recurra.transforms.rewriter.rewriting import Rewriting


def widened(graph: Graph, along: GrowingAxes, growing: Growing, part: Slice) -> Graph:
    """The graph whose equations along `growing` read all of `part`, which has every point of it.

    They must be `along.members(g)`.
    """
    members = along.members(growing)
    assert members is not None, f"{growing} is not all of what runs along it"
    new = Rewriting.of(graph, along.sizes)
    work = _Widen(graph, along, growing, part, new)
    names = [n for n in graph.nodes if n in members]
    for name in topological(names, lambda n: [a.name for a in graph[n].args]):
        work.rebuild(graph[name])
    return Graph(new.nodes, graph.outputs, graph.dims)


class _Widen:
    def __init__(
        self, graph: Graph, along: GrowingAxes, growing: Growing, part: Slice, new: Rewriting
    ):
        self.graph, self.along, self.g, self.part, self.new = graph, along, growing, part, new
        source = next(
            r
            for n in graph.nodes.values()
            for a in n.args
            for e, r in zip(a.index, graph[a.name].domain, strict=True)
            if isinstance(e, Slice) and along.at(e) == growing
        )
        self.places = Domain((source,))
        self.below: dict[Ref, Ref] = {}  # what a maximum reads, without what it leaves out

    def rebuild(self, node: Node) -> None:
        """One equation, over the longer range; what it folds is masked."""
        self.new.loc = node.loc
        axes = [self.along.operand(a) for a in node.args]
        args = [self.read(a) for a in node.args]
        if self.g not in self.along.of(node.name):
            k = self.masked(axes, args)
            args[k] = self.hidden(node, args[k], axes[k].index(self.g))
            if isinstance(node.op, Max):
                self.below[node.args[k]] = args[k]
        elif self.exponent(node):  # of what is left out it would be any size
            args[0] = self.below.get(node.args[0], args[0])
        type_ = node.op.infer(*map(self.new.type, args))
        self.new.put(replace(node, args=tuple(args), type=type_))

    def exponent(self, node: Node) -> bool:
        """Is it only raised to a power of e?"""
        readers = self.graph.readers[node.name]
        return isinstance(node.op, Sub) and all(isinstance(r.op, Exp) for r, _ in readers)

    def read(self, ref: Ref) -> Ref:
        index = (
            replace(e, lo=self.part.lo, hi=self.part.hi, step=1)
            if isinstance(e, Slice) and self.along.at(e) == self.g
            else e
            for e in ref.index
        )
        return Ref(ref.name, tuple(index))

    def masked(self, axes: Sequence[Sequence[object]], args: Sequence[Ref]) -> int:
        """The operand of fewest axes that has the range."""
        having = [k for k, x in enumerate(axes) if self.g in x]
        return min(having, key=lambda k: self.new.type(args[k]).rank)

    def in_step(self, node: Node) -> Ref:
        """Mark the points that are a whole number of steps from the range's first."""
        of: Any = Sym(self.places.dims[0])
        turn = self.new.emit(Value(expr=of % self.g.step), (), self.places, "turn")
        start: Expr | int = self.g.lo
        mine = self.new.emit(Value(expr=start % self.g.step), (), node.domain, "turn")
        every = Ref(turn.name, (self.part,))
        return self.new.emit(Equal(labels=",a->a"), (mine, every), node.domain, "in_step")

    def hidden(self, node: Node, ref: Ref, axis: int) -> Ref:
        """An operand with what leaves a fold alone where the range was not."""
        dim = self.places.dims[0]
        at = self.new.emit(Value(expr=Sym(dim)), (), self.places, "at")
        every = Ref(at.name, (self.part,))
        if self.part.hi == self.g.hi:
            first = self.new.emit(Value(expr=self.g.lo), (), node.domain, "first")
            within = LessEqual(labels=",a->a")
            seen = self.new.emit(within, (first, every), node.domain, "seen")
        else:  # first points, all of which are read
            end: Expr | int = self.g.hi
            last = self.new.emit(Value(expr=end - 1), (), node.domain, "last")
            until = LessEqual(labels="a,->a")
            seen = self.new.emit(until, (every, last), node.domain, "seen")
        if self.g.step != 1:
            seen = self.new.emit(And(), (seen, self.in_step(node)), node.domain, "seen")
        type_ = self.new.type(ref)
        assert isinstance(type_, Type)
        monoid = "add" if isinstance(node.op, Einsum) else node.op.monoid
        assert monoid is not None, f"{node} folds what has no monoid"
        value = identity(monoid, type_.dtype)
        none = self.new.emit(Const(value=value, dtype=type_.dtype), (), node.domain, "none")
        axes = LETTERS[: type_.rank]
        labels = join_labels((axes[axis], axes, ""), axes)
        return self.new.emit(Where(labels=labels), (seen, ref, none), node.domain, "seen_only")
