"""Choose equations to set to zero past the end of rows, so that sums over rows need no masks.

    Σ over b,t of  d_y · x[b,t] ⊗ ..      zero past the end if d_y is, and if x is finite there
    d_y[b,t] = d_l · w                    zero if d_l is: one scalar per point is masked

`solve` finds the greatest sets of equations that are zero, and finite, past the end, for the
equations masked so far. A recurrence that goes on past its end may overflow: it is finite only if
an op bounds it, h[t+1] = tanh(w h). `plan` proposes what to mask, and `solve` checks it.
"""

from __future__ import annotations

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
NOTHING = "nothing"  # zero, or zero times any value: it does not count in sums of gradients
KINDS = (ZERO, FINITE, NOTHING)
Fact = tuple[str, str]  # (one of KINDS, equation)
Masks = tuple[float, frozenset[str]]  # elements to mask per point, and the equations to mask
_IMPOSSIBLE: Masks = (inf, frozenset())


@dataclass
class Zeros:
    """The facts that hold past the end of rows, if the equations in `masked` are set to zero."""

    graph: Graph
    times: frozenset[str]
    masked: set[str] = field(default_factory=set[str])
    grows: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.holds = self.solve()

    def mask(self, name: str) -> bool:
        """Make an equation zero past the end of rows, by masks on it or its operands."""
        if (ZERO, name) in self.holds:
            return True
        cost, names = self.plan((ZERO, name), {})
        if cost == inf:
            return False
        before = set(self.masked)
        self.masked |= names
        self.holds = self.solve()
        if (ZERO, name) not in self.holds:
            self.masked = before | {name}
            self.holds = self.solve()
        return True

    def time(self, node: Node) -> str:
        """The one time dim that an equation is over; "" if there is none, or several."""
        mine = [d for d in node.domain.dims if d in self.times]
        return mine[0] if len(mine) == 1 else ""

    # ---- the premises of a fact

    def known(self, fact: Fact) -> bool | None:
        """Tell whether a fact holds for any operands; None if it depends on them."""
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

    def premises(self, fact: Fact) -> list[list[Fact]]:
        """Sets of facts, each of which implies a fact."""
        kind, name = fact
        n = self.graph[name]
        every = [(kind, a.name) for a in n.args]
        if self._is_empty_extremum(n):
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

    def _is_empty_extremum(self, node: Node) -> bool:
        """Tell whether an extremum is infinite past the end, where x[b,t:T] is empty."""
        if not isinstance(node.op, (Max, Min)):
            return False
        shape = self.graph.read_type(node.args[0]).shape
        return any(self.times & symbols(shape[k]) for k in node.op.axes)

    def _is_outside(self, node: Node, op: Pick) -> bool:
        """Tell whether a pick past the end of a row is outside of its axis."""
        size = self.graph.read_type(node.args[0]).shape[op.axis]
        shift = is_shift(op.at_, self.time(node)) if self.time(node) else None
        return shift is not None and shift >= 0 and size == node.domain[self.time(node)].hi

    def _safe_div(self, node: Node) -> bool:
        """Tell whether a division is by a value constant in time, which is not zero inside rows."""
        if not isinstance(node.op, el.Div):
            return False
        return not self.times & set(self.graph[node.args[1].name].domain.dims)

    def _later(self, node: Node, ref: Ref) -> bool:
        """Tell whether points past the end of a row read points past the end only."""
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

    def solve(self) -> frozenset[Fact]:
        """Find the greatest set of facts by removing those that fail until none does."""
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
        known = self.known(fact)
        if known is not None:
            return known
        return any(facts.issuperset(premise) for premise in self.premises(fact))

    def growing(self) -> set[str]:
        """The equations that depend on themselves past the end of a row without a bound."""

        def unbounded(name: str) -> bool:
            n = self.graph[name]
            return self.known((FINITE, name)) is None and not isinstance(n.op, _BOUNDED)

        def operands(name: str) -> list[str]:
            return [a.name for a in self.graph[name].args if unbounded(a.name)]

        parts = components(filter(unbounded, self.graph.nodes), operands)
        return {x for part in parts for x in part if len(part) > 1 or x in operands(x)}

    # ---- a cheap way

    def plan(self, fact: Fact, seen: dict[Fact, Masks]) -> Masks:
        """The fewest elements to mask for a fact, as far as one look at each equation shows."""
        if fact in self.holds:
            return 0, frozenset()
        if fact in seen:
            return seen[fact]
        seen[fact] = 0, frozenset()  # on a cycle: if all else holds, this does
        n = self.graph[fact[1]]
        best = _IMPOSSIBLE
        if self.time(n) and isinstance(n.type, Type) and not isinstance(n.op, Input):
            size = prod(s if isinstance(s, int) else 64 for s in n.type.shape)
            best = size, frozenset({n.name})  # the equation itself
        if self.known(fact) is None and not (fact[0] == FINITE and n.name in self.grows):
            for premise in self.premises(fact):
                parts = [self.plan(f, seen) for f in premise]
                names = frozenset[str]().union(*(names for _, names in parts))
                best = min(best, (sum(cost for cost, _ in parts), names), key=lambda m: m[0])
        seen[fact] = best
        return best
