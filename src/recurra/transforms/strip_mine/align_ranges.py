"""Widen a range of the past to where tiles begin, and mask the extra points in what reduces it.

    s[t<T] = mul(q, x[max(t-5,0):t+1], ..)     s[t<T] = mul(q, x[4*(max(t-5,0)//4):t+1], ..)
    y[t<T] = sum(s, axes=(0,))             →   seen[t<T] = less_equal(first, at[4*(..):t+1])
                                               y[t<T] = sum(where(seen, s, 0), axes=(0,))

A range of every n-th point gets all points, and one of first points as many as there ever are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from recurra.ir.expr import Expr, Sym
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import LETTERS, Op, join_labels
from recurra.ir.order import topological
from recurra.ir.types import Domain, Type
from recurra.ops.contraction import Einsum
from recurra.ops.elementwise import And, Equal, Exp, LessEqual, Sub, Where
from recurra.ops.reduction import Max, identity
from recurra.ops.source import Const, Value
from recurra.transforms.growing_ranges import Growing, GrowingAxes
from recurra.transforms.rewriter.rewriting import Rewriting


def align_range(graph: Graph, along: GrowingAxes, growing: Growing, part: Slice) -> Graph:
    """Return the graph whose equations along `growing` read `part`, which has all of its points."""
    members = along.members(growing)
    assert members is not None, f"{growing} is not all of what runs along it"
    work = _Widen(graph, along, growing, part, Rewriting.of(graph, along.sizes))
    names = [n for n in graph.nodes if n in members]
    for name in topological(names, lambda n: [a.name for a in graph[n].args]):
        work.rebuild(graph[name])
    return work.new.graph


@dataclass
class _Widen:
    """The range `g`, widened to `part` in the graph `new`."""

    graph: Graph
    along: GrowingAxes
    g: Growing
    part: Slice
    new: Rewriting
    masked: dict[Ref, Ref] = field(default_factory=dict[Ref, Ref])  # operands of maxima

    def __post_init__(self) -> None:
        source = next(
            r
            for n in self.graph.nodes.values()
            for a in n.args
            for e, r in zip(a.index, self.graph[a.name].domain, strict=True)
            if isinstance(e, Slice) and self.along.at(e) == self.g
        )
        self.points = Domain((source,))

    def rebuild(self, node: Node) -> None:
        """Rewrite an equation over the longer range; mask what it reduces."""
        self.new.loc = node.loc
        axes = [self.along.operand(a) for a in node.args]
        args = [self.read(a) for a in node.args]
        if self.g not in self.along.of(node.name):
            k = self.smallest_operand(axes, args)
            args[k] = self.mask(node, args[k], axes[k].index(self.g))
            if isinstance(node.op, Max):
                self.masked[node.args[k]] = args[k]
        elif self.is_exponent(node):  # exp of an extra point may overflow
            args[0] = self.masked.get(node.args[0], args[0])
        type_ = node.op.infer(*map(self.new.type, args))
        self.new.put(replace(node, args=tuple(args), type=type_))

    def is_exponent(self, node: Node) -> bool:
        """Tell whether an equation is a difference that only exponentials read."""
        readers = self.graph.readers[node.name]
        return isinstance(node.op, Sub) and all(isinstance(r.op, Exp) for r, _ in readers)

    def read(self, ref: Ref) -> Ref:
        """A read with the range widened."""
        index = (
            replace(e, lo=self.part.lo, hi=self.part.hi, step=1)
            if isinstance(e, Slice) and self.along.at(e) == self.g
            else e
            for e in ref.index
        )
        return Ref(ref.name, tuple(index))

    def smallest_operand(self, axes: Sequence[Sequence[object]], args: Sequence[Ref]) -> int:
        """The operand of fewest axes that has the range."""
        having = [k for k, x in enumerate(axes) if self.g in x]
        return min(having, key=lambda k: self.new.type(args[k]).rank)

    def along_points(self, expr: Expr | int, stem: str) -> Ref:
        """Emit an expression of the points, and read it over the widened range."""
        return Ref(self.new.emit(Value(expr=expr), (), self.points, stem).name, (self.part,))

    def mask(self, node: Node, ref: Ref, axis: int) -> Ref:
        """An operand with the neutral element of the reduction at the extra points."""

        def emit(op: Op, args: Sequence[Ref], stem: str) -> Ref:
            return self.new.emit(op, args, node.domain, stem)

        point: object = Sym(self.points.dims[0])
        start: Expr | int = self.g.lo
        end: Expr | int = self.g.hi
        at = self.along_points(point, "at")
        if self.part.hi == end:
            first = emit(Value(expr=start), (), "first")
            seen = emit(LessEqual(labels=",a->a"), (first, at), "seen")
        else:  # first points, all of which are read
            last = emit(Value(expr=end - 1), (), "last")
            seen = emit(LessEqual(labels="a,->a"), (at, last), "seen")
        if self.g.step != 1:  # the points a whole number of steps from the first
            turn = self.along_points(point % self.g.step, "turn")
            mine = emit(Value(expr=start % self.g.step), (), "turn")
            in_step = emit(Equal(labels=",a->a"), (mine, turn), "in_step")
            seen = emit(And(), (seen, in_step), "seen")
        type_ = self.new.type(ref)
        assert isinstance(type_, Type)
        monoid = "add" if isinstance(node.op, Einsum) else node.op.monoid
        assert monoid is not None, f"{node} folds what has no monoid"
        none = emit(Const(value=identity(monoid, type_.dtype), dtype=type_.dtype), (), "none")
        axes = LETTERS[: type_.rank]
        labels = join_labels((axes[axis], axes, ""), axes)
        return emit(Where(labels=labels), (seen, ref, none), "seen_only")
