"""Zeros past the end of rows, placed so that sums over them need no masks of their own.

    Σ over b,t of  d_y · x[b,t] ⊗ ..      zero past the end if d_y is, and if x is finite there
    d_y[b,t] = d_l · w                    zero if d_l is: one scalar per point is masked

`settled` is what holds: the greatest sets of equations that are zero, and finite, past the end,
given those that are masked. A recurrence that goes on past its end may grow until it overflows: it
is finite only if something bounds it, h[t+1] = tanh(w h). `plan` proposes what to mask; it is only
believed if that settles it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, prod

from recurra.ir.expr import symbols
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.order import components
from recurra.ir.types import Type, is_float, is_shift
from recurra.ops import elementwise as el
from recurra.ops import movement as move
from recurra.ops import special
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.indexing import ArgSort, OneHot, Pick, Place, SearchSorted, Take
from recurra.ops.ordering import CumMax, Sort, TopK
from recurra.ops.permutation import Permutation
from recurra.ops.random import Uniform
from recurra.ops.reduction import All, Any_, ArgMax, Max, Min, Sum
from recurra.ops.scan import CumSum, DiscountedSum, Discounts
from recurra.ops.softmax import LogSoftmax, Softmax
from recurra.ops.source import Const, Data, Input, Value

_PRODUCT = (el.Mul, el.And, Einsum)
_ODD = (
    *(
        el.Neg,
        el.Abs,
        el.Sign,
        el.Floor,
        el.Round,
        el.Square,
        el.Sqrt,
        el.HyperbolicTangent,
        el.Sin,
        el.Cast,
        el.Detach,
    ),
    special.Erf,
)
_LINEAR = (el.Add, el.Sub, el.Maximum, el.Minimum, el.WithGradient, move.Concat, Merge)
_MOVES = (
    *(move.Expand, move.Transpose, move.Reshape, move.Cut, move.Flip, Pick, Place, Take),
    *(Sum, Max, Min, CumSum, DiscountedSum, Discounts),
)
_TOTAL = (
    *(*_PRODUCT, *_ODD[:5], el.Square, el.Sin, el.Cos, el.Cast, el.Detach),
    *(el.HyperbolicTangent, el.Logistic, special.Erf, special.Erfc),
    *(*_LINEAR, *_MOVES, el.Where, el.Comparison, el.Logical, Softmax, LogSoftmax, move.Pad),
    *(ArgMax, ArgSort, SearchSorted, Sort, TopK, CumMax, Any_, All, OneHot),
    *(Value, Uniform, Permutation, Data),
)  # finite of finite operands, unless they grow from step to step
_BOUNDED = (
    *(el.HyperbolicTangent, el.Sin, el.Cos, el.Logistic, el.Sign, Softmax, Uniform),
    *(special.Erf, special.Erfc),
)

ZERO, FINITE = "zero", "finite"
NOTHING = "nothing"  # zero, or a product of zero and what need not be finite: of no gradient a part
KINDS = (ZERO, FINITE, NOTHING)
Fact = tuple[str, str]  # (one of KINDS, equation)
Way = tuple[float, frozenset[str]]  # elements to mask per point, and the equations that have them
_NO_WAY: Way = (inf, frozenset())


@dataclass
class Zeros:
    """The equations of one time in a graph; `masked` are zero past the end of their row."""

    graph: Graph
    times: frozenset[str]
    masked: set[str] = field(default_factory=set[str])
    grows: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.holds = self.settled()

    def mask(self, name: str) -> bool:
        """Makes an equation zero past the end of rows, here or further up. False: it cannot be."""
        if (ZERO, name) in self.holds:
            return True
        cost, names = self.plan((ZERO, name), {})
        if cost == inf:
            return False
        before = set(self.masked)
        self.masked |= names
        self.holds = self.settled()
        if (ZERO, name) not in self.holds:
            self.masked = before | {name}
            self.holds = self.settled()
        return True

    def time(self, node: Node) -> str:
        """The one time that an equation varies with; "" if there is none, or several."""
        mine = [d for d in node.domain.dims if d in self.times]
        return mine[0] if len(mine) == 1 else ""

    # ---- what a fact needs

    def given(self, fact: Fact) -> bool | None:
        """Is it so whatever the operands are? None: it depends on them."""
        kind, name = fact
        n = self.graph[name]
        if name in self.masked and kind != NOTHING:
            return True
        if not isinstance(n.type, Type):
            return False
        timed = any(d in self.times for d in n.domain.dims)
        if kind == FINITE:
            return True if not timed or not is_float(n.type.dtype) else None
        if isinstance(n.op, Const):
            return n.op.value == 0
        if kind == NOTHING and isinstance(n.op, Pick) and n.op.zero and self._is_outside(n, n.op):
            return True
        return None if self.time(n) else False

    def needs(self, fact: Fact) -> list[list[Fact]]:
        """Sets of facts, each of which is enough."""
        kind, name = fact
        n = self.graph[name]
        every = [(kind, a.name) for a in n.args]
        if self._of_nothing(n):
            return []
        if kind == FINITE:
            return [every] if isinstance(n.op, _TOTAL) or self._safe_div(n) else []
        later = [self._later(n, a) for a in n.args]
        match n.op:
            case op if isinstance(op, _PRODUCT):
                rest = n.args if kind == ZERO else ()
                return [
                    [(kind, a.name), *((FINITE, o.name) for j, o in enumerate(rest) if j != k)]
                    for k, a in enumerate(n.args)
                    if later[k]
                ]
            case op if isinstance(op, _LINEAR):
                return [every] if all(later) else []
            case el.Where():
                return [every[1:]] if all(later[1:]) else []
            case el.Div() if kind == NOTHING:
                return [every[:1]] if later[0] else []
            case op if isinstance(op, (*_ODD, *_MOVES)) or self._safe_div(n):
                return [every[:1]] if later[0] else []
            case _:
                return []

    def _of_nothing(self, node: Node) -> bool:
        """Is it the extremum of what is empty past the end, x[b,t:T]? It is infinite there."""
        if not isinstance(node.op, (Max, Min)):
            return False
        shape = self.graph.read_type(node.args[0]).shape
        return any(self.times & symbols(shape[k]) for k in node.op.axes)

    def _is_outside(self, node: Node, op: Pick) -> bool:
        """Past the end of a row, is an element asked for that its axis does not have?"""
        size = self.graph.read_type(node.args[0]).shape[op.axis]
        shift = is_shift(op.at_, self.time(node)) if self.time(node) else None
        return shift is not None and shift >= 0 and size == node.domain[self.time(node)].hi

    def _safe_div(self, node: Node) -> bool:
        """A division by what does not vary with time: it is not zero where rows have points."""
        return isinstance(node.op, el.Div) and not self.times & set(
            self.graph[node.args[1].name].domain.dims
        )

    def _later(self, node: Node, ref: Ref) -> bool:
        """Past the end of a row, are all the points that are read past it too?"""
        source = self.graph[ref.name]
        if isinstance(source.op, Const):
            return True
        mine, theirs = self.time(node), self.time(source)
        if not mine or not theirs:
            return False
        e = dict(zip(source.domain.dims, ref.index, strict=True))[theirs]
        c = is_shift(e.lo if isinstance(e, Slice) else e, mine)
        return c is not None and c >= 0

    # ---- the greatest set of facts

    def settled(self) -> frozenset[Fact]:
        """All that holds: what fails is taken away until nothing more does."""
        self.grows = self.growing()
        facts = {(kind, n) for n in self.graph.nodes for kind in (ZERO, NOTHING)}
        facts |= {(FINITE, n) for n in self.graph.nodes if n not in self.grows}
        readers = self.graph.readers
        todo = list(facts)
        while todo:
            fact = todo.pop()
            if fact in facts and not self._follows(fact, facts):
                facts.discard(fact)
                users = [r.name for r, _ in readers[fact[1]]]
                todo += [(kind, r) for r in users for kind in KINDS]
        return frozenset(facts)

    def _follows(self, fact: Fact, facts: set[Fact]) -> bool:
        known = self.given(fact)
        if known is not None:
            return known
        return any(all(f in facts for f in need) for need in self.needs(fact))

    def growing(self) -> set[str]:
        """Equations whose values past the end of a row depend on themselves, and nothing bounds."""

        def unbounded(name: str) -> bool:
            n = self.graph[name]
            return self.given((FINITE, name)) is None and not isinstance(n.op, _BOUNDED)

        def operands(name: str) -> list[str]:
            return [a.name for a in self.graph[name].args if unbounded(a.name)]

        parts = components(filter(unbounded, self.graph.nodes), operands)
        return {x for part in parts for x in part if len(part) > 1 or x in operands(x)}

    # ---- a cheap way

    def plan(self, fact: Fact, seen: dict[Fact, Way]) -> Way:
        """The fewest elements that make a fact so, as far as one look at each equation tells."""
        if fact in self.holds:
            return 0, frozenset()
        if fact in seen:
            return seen[fact]
        seen[fact] = 0, frozenset()  # on a cycle: if all else holds, this does
        n = self.graph[fact[1]]
        best = self._alone(n)
        if self.given(fact) is None and not (fact[0] == FINITE and n.name in self.grows):
            for need in self.needs(fact):
                best = min(best, _together(self.plan(f, seen) for f in need), key=lambda w: w[0])
        seen[fact] = best
        return best

    def _alone(self, node: Node) -> Way:
        """Masking the equation itself."""
        if not self.time(node) or not isinstance(node.type, Type) or isinstance(node.op, Input):
            return _NO_WAY
        size = prod(s if isinstance(s, int) else 64 for s in node.type.shape)
        return size, frozenset({node.name})


def _together(ways: Iterable[Way]) -> Way:
    found = list(ways)
    return sum(cost for cost, _ in found), frozenset[str]().union(*(names for _, names in found))
