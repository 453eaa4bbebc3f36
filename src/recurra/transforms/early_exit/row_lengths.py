"""The lengths of rows that the data end: masks, conditions and numbers made of them.

alive[b,t]           true where row b has a point t
t < T-1          →   alive[b,t+1]
B*T              →   Σ over b of the lengths
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import Any, NoReturn

from recurra.errors import DomainError, Loc
from recurra.ir.bind import bind_bounds
from recurra.ir.expr import (
    FALSE,
    TRUE,
    Cmp,
    Expr,
    Ext,
    FloorDiv,
    Lin,
    Logic,
    Modulo,
    Product,
    Sym,
    all_of,
    any_of,
    children,
    compare,
    lin,
    negate,
    substitute,
    symbols,
)
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import LETTERS, Op, join_labels
from recurra.ir.types import Domain, Range, Type
from recurra.ops import elementwise as el
from recurra.ops.control import Merge
from recurra.ops.reduction import Sum
from recurra.ops.source import Const, Value
from recurra.polyhedral import isl
from recurra.transforms.early_exit.ragged_axes import Axes
from recurra.transforms.rewriter.rewriting import Rewriting, shape_of


@dataclass(frozen=True)
class Ending:
    """A row ends at the first point, from `first` on, at which `done` holds, or after `most`."""

    done: str
    first: Expr | int
    most: int
    loc: Loc | None = field(default=None, compare=False)
    every: int = 0  # steps between polls of a loop; 0: chosen for the device


@dataclass
class RowLengths:
    """A program whose bound T, at which rows end, becomes a number; `n` is being rewritten."""

    graph: Graph
    bound: str
    ending: Ending

    def __post_init__(self) -> None:
        graph, done = self.graph, self.graph[self.ending.done]
        self.by: dict[str, Expr | int] = {self.bound: self.ending.most}
        self.sym = Sym(self.bound)
        self.timed = {
            r.dim for n in graph.nodes.values() for r in n.domain if self.bound in symbols(r.hi)
        }
        (time,) = [r for r in done.domain if r.dim in self.timed]
        self.time, self.rows = time.dim, done.domain.without(time.dim)
        self.ranges = {d.name: d.range for d in graph.dims}
        static = bind_bounds(graph, {self.bound: self.ending.most})
        self.g = Rewriting.of(static, {})
        self.axes: dict[str, Axes] = {
            n.name: (None,) * len(shape_of(n.type)) for n in graph.nodes.values()
        }
        self.per_row: dict[str, Domain] = {}  # equations that now vary with rows
        self.ending_dims = done.domain.dims
        self.own_row: tuple[Index, ...] = tuple(r.sym for r in self.rows)
        self.alive = self.g.fresh("alive")
        self.n = done

    # ---- the equation that is being rewritten

    def emit(self, op: Op, args: Sequence[Ref], stem: str = "", within: Any = None) -> Ref:
        """Add an equation over the dims that it mentions of `within`, or of equation `n`."""
        box: Domain = self.domain(self.n) if within is None else within
        return self.g.emit(op, args, box, stem or op.name)

    def const(
        self, value: Any, dtype: str, within: Any = None, shape: tuple[Expr | int, ...] = ()
    ) -> Ref:
        """Add a constant."""
        return self.emit(Const(value=value, dtype=dtype, shape=shape), (), within=within)

    def combined(self, op: Op, parts: Iterable[Ref], within: Domain | None = None) -> Ref:
        """Combine values by an op, one after the other."""
        return reduce(lambda x, y: self.emit(op, (x, y), within=within), parts)

    def domain(self, node: Node) -> Domain:
        """The domain of an equation, with the number for T."""
        return self.static(self.per_row.get(node.name, node.domain))

    def static(self, domain: Domain) -> Domain:
        """A domain with the number for T."""
        return Domain(
            tuple(
                Range(r.dim, substitute(r.hi, self.by), substitute(r.lo, self.by)) for r in domain
            )
        )

    def is_dynamic(self, index: Index) -> bool:
        """Tell whether an index, a size or a value mentions T."""
        return self.bound in (index_symbols(index) if isinstance(index, Slice) else symbols(index))

    def refuse(self, what: str, facts: str, hint: str, index: int = -1) -> NoReturn:
        """Raise DomainError about the equation, or its operand `index`."""
        n = self.n
        loc = n.lines[index] if 0 <= index < len(n.args) else n.loc
        raise DomainError(what, facts=facts, hint=hint, loc=loc)

    def original_dim(self, dim: str) -> str:
        """The dim of rows or time that a dim copies: gradients have a second one."""
        first, mine = self.graph.first_of(dim), self.ranges[dim]
        for r in (*self.rows, self.ranges[self.time]):
            if first == r.dim and (mine.lo, mine.hi) == (r.lo, r.hi):
                return r.dim
        return dim

    # ---- where rows end

    def is_alive_mask(self, node: Node) -> bool:
        """Tell whether an equation is the mask of other rows, inside of these."""
        return any(isinstance(self.graph[a.name].op, el.Going) for a in node.args)

    def add_alive(self) -> None:
        """Add alive[b,t], true where row b has a point t."""
        done, e, now = self.g[self.ending.done], self.ending, Sym(self.time)
        self.g.loc = e.loc
        box = done.domain
        ends = self.g.read(done.name)
        if e.first != 0:
            late = self.emit(Value(expr=compare(">=", now, e.first), dtype="bool"), ())
            ends = self.emit(el.And(), (ends, late), "ends")
        on = self.const(True, "bool")
        alive = Node(self.alive, Merge(when=(TRUE,)), (on,), box, Type("bool"), e.loc)
        self.g.put(alive)
        more = self.emit(el.Not(), (ends,), "more")
        others = (d for d in self.graph.declared if d in self.timed and d != self.time)
        op = el.Going(times=(self.time, *others), every=e.every)
        going = self.emit(op, (self.g.read(self.alive), more), "going")
        before = Ref(going.name, box.point(self.time, now - 1))
        first = 0 if symbols(e.first) & self.ranges.keys() else e.first  # no row ends before it
        when = (compare("<=", now, first), compare(">", now, first))
        if first == 0:
            when = (compare("==", now, 0), compare(">=", now, 1))
        self.g.put(replace(alive, op=Merge(when=when), args=(on, before)))

    def _distance_to_end(self, expr: Expr | int) -> int | None:
        """c if `expr` is T - c."""
        gap = lin([(self.sym, 1), (expr, -1)])
        return gap if isinstance(gap, int) else None

    def is_before_end(
        self, expr: Expr | int, rows: Sequence[Index], within: Domain | None = None
    ) -> Ref:
        """Emit whether e < T in a row."""
        box = self.domain(self.n) if within is None else within
        by = dict(zip(self.rows.dims, rows, strict=True))
        index = tuple(expr if d == self.time else by[d] for d in self.ending_dims)
        missing = set().union(*map(index_symbols, index)) & self.ranges.keys() - set(box.dims)
        if missing:
            self._refuse_without_rows(", ".join(sorted(missing)))
        if isinstance(expr, int) and 0 < expr < self.ending.most:  # also if no row got so far
            length, at = self._length([]), self.const(expr, "i32")
            return self.emit(el.Less(), (at, Ref(length.name, tuple(rows))), "is_longer", box)
        early, late = compare("<", expr, 0), compare(">=", expr, self.ending.most)
        early = FALSE if isl.always(negate(early), box) else early
        late = FALSE if isl.always(negate(late), box) else late
        ref = Ref(self.alive, index)
        if early == FALSE and late == FALSE:
            return ref
        arms: list[tuple[Expr, Ref]] = []
        if early != FALSE:
            arms.append((early, self.const(True, "bool")))
        if late != FALSE:
            arms.append((late, self.const(False, "bool")))
        if (inside := negate(any_of(early, late))) != FALSE:
            arms.append((inside, ref))
        op = Merge(when=tuple(c for c, _ in arms))
        return self.g.emit(op, tuple(x for _, x in arms), box, "before_end")

    def _refuse_without_rows(self, dims: str) -> NoReturn:
        self.refuse(
            f"{self.bound} differs from row to row, and {self.n.name} is in none",
            f"it is set by {self.ending.done} over {', '.join(self.ending_dims)}; "
            f"{self.n.name} is over {', '.join(self.n.domain.dims) or 'no dim'}, without {dims}",
            f"count the points of all rows, {' * '.join([str(r.hi) for r in self.rows])} * "
            f"{self.bound}, or take the mean of each row first",
        )

    def simplified(self, condition: Expr) -> Expr:
        """A condition in which T is compared alone, and comparisons are decided where possible."""
        return self._simplified(condition) if self.is_dynamic(condition) else condition

    def _simplified(self, condition: Expr) -> Expr:
        if isinstance(condition, Logic):
            parts = [self._simplified(a) for a in condition.args]
            if condition.op == "~":
                return negate(parts[0])
            return all_of(*parts) if condition.op == "&" else any_of(*parts)
        assert isinstance(condition, Cmp), f"{condition} is no condition"
        if isl.always(condition, self.n.domain):
            return TRUE
        if isl.always(negate(condition), self.n.domain):
            return FALSE
        cases = _cases(condition, self.bound)
        return condition if cases is None else self._simplified(cases)

    def condition(self, expr: Expr) -> Ref:
        """Emit a condition on dims and T."""
        if not self.is_dynamic(expr):
            return self.emit(Value(expr=expr, dtype="bool"), ())
        match expr:
            case Logic(op="~", args=(a,)):
                return self.emit(el.Not(), (self.condition(a),))
            case Logic(op=op, args=args):
                return self.combined(el.And() if op == "&" else el.Or(), map(self.condition, args))
            case Cmp(op=op, a=a, b=b):
                return self._comparison(op, a, b)
            case _:
                raise AssertionError(f"{expr} is no condition")

    def _comparison(self, op: str, left: Expr | int, right: Expr | int) -> Ref:
        """Emit a op b, one of which is T - c: T op e, by whether rows have points before e."""
        gap = lin([(left, 1), (right, -1)])
        late: Any = lin([(self.sym, 1), (gap, -1)])  # T - e op 0
        early: Any = lin([(self.sym, 1), (gap, 1)])  # e - T op 0
        if self.is_dynamic(late) and self.is_dynamic(early):  # of T//2 and the like
            x, y = self.number(left), self.number(right)
            kind, is_swapped = _NUMBERS[op]
            return self.emit(kind, (y, x) if is_swapped else (x, y))
        at, op = (early, _MIRRORED[op]) if self.is_dynamic(late) else (late, op)
        longer = self.is_before_end(at, self.own_row)
        at_least = self.is_before_end(at - 1, self.own_row)
        match op:
            case ">":
                return longer
            case ">=":
                return at_least
            case "<":
                return self.emit(el.Not(), (at_least,))
            case "<=":
                return self.emit(el.Not(), (longer,))
            case _:
                shorter = self.emit(el.Not(), (longer,))
                same = self.emit(el.And(), (at_least, shorter))
                return same if op == "==" else self.emit(el.Not(), (same,))

    def _row_dims(self, expr: Expr | int) -> set[str]:
        """The dims of rows that a number varies with."""
        if not self.is_dynamic(expr):
            return set()
        if isinstance(expr, Product):
            return set(self.rows.dims) - {r.dim for r in self._counted_rows(expr)[0]}
        if isinstance(expr, (Sym, Cmp)):
            return set(self.rows.dims)
        return set().union(*map(self._row_dims, children(expr)))

    def _counted_rows(self, prod: Product) -> tuple[list[Range], list[Expr]]:
        """The dims of rows over which a product sums the lengths T, and its other factors."""
        factors = list(_factors(prod))
        factors.remove(self.sym)
        if any(self.is_dynamic(x) for x in factors):
            self.refuse(
                f"{prod} is no number of points",
                f"{self.bound} stands in it twice, and differs from row to row",
                f"read it as a number first: rc.value({self.bound})",
            )
        counted = list[Range]()
        for r in self.rows:
            if r.hi in factors and r.lo == 0:
                factors.remove(r.hi)  # pyright: ignore[reportArgumentType]
                counted.append(r)
        return counted, factors

    def number(self, expr: Expr | int) -> Ref:
        """Emit an expression of T, as an i32."""
        if not self.is_dynamic(expr):
            return self.emit(Value(expr=expr, dtype="i32"), ())
        if missing := self._row_dims(expr) - set(self.domain(self.n).dims):
            self._refuse_without_rows(", ".join(sorted(missing)))
        match expr:
            case Sym():
                return self._length([])
            case Product():
                counted, factors = self._counted_rows(expr)
                numbers = map(self.number, factors)
                return self.combined(el.Mul(), chain([self._length(counted)], numbers))
            case Lin(terms=terms, const=const):
                rest = lin([(const, 1), *((x, k) for x, k in terms if not self.is_dynamic(x))])
                parts = [self._times(k, self.number(x)) for x, k in terms if self.is_dynamic(x)]
                parts += [] if rest == 0 else [self.number(rest)]
                return self.combined(el.Add(), parts)
            case Ext(op=op, args=args):
                join = el.Minimum() if op == "min" else el.Maximum()
                return self.combined(join, map(self.number, args))
            case FloorDiv(a=a, n=n) | Modulo(a=a, n=n):
                by = self.const(n, "i32")
                op = el.FloorDivide() if isinstance(expr, FloorDiv) else el.Mod()
                return self.emit(op, (self.number(a), by))
            case _:
                self.refuse(
                    f"{expr} cannot be computed row by row",
                    f"{self.bound} is set while the program runs",
                    f"read it as a number first: rc.value({self.bound}, 'f32') / 2",
                )

    def _times(self, index: int, ref: Ref) -> Ref:
        if index == 1:
            return ref
        return self.emit(el.Mul(), (self.emit(Value(expr=index, dtype="i32"), ()), ref))

    def _length(self, over: Sequence[Range]) -> Ref:
        """Emit the number of points of the own row, or of all rows `over` some dims."""
        whole = {r.dim for r in over} | {self.time}
        box = self.static(self.graph[self.ending.done].domain)
        counts = self.emit(el.Cast(to="i32"), (self.g.read(self.alive),), "counts", box)
        index = tuple(Slice(r.lo, r.hi) if r.dim in whole else r.sym for r in box)
        axes = tuple(range(len(whole)))
        return self.emit(Sum(axes=axes), (Ref(counts.name, index),), "length", box)


def choice(rank: int, both: bool = True) -> el.Where:
    """Return the op that chooses between two arrays of a rank by a scalar; one may be a scalar."""
    axes = LETTERS[:rank]
    return el.Where(labels=join_labels(("", axes, axes if both else ""), axes))


_NUMBERS: Mapping[str, tuple[Op, bool]] = {  # the op of a comparison, and whether b comes first
    "<": (el.Less(), False),
    "<=": (el.LessEqual(), False),
    ">": (el.Less(), True),
    ">=": (el.LessEqual(), True),
    "==": (el.Equal(), False),
    "!=": (el.NotEqual(), False),
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def _cases(cmp: Cmp, bound: str) -> Expr | None:
    """Expand e < min(a, T) to e < a & e < T; None if T is in no min or max."""
    parts = terms(lin([(cmp.a, 1), (cmp.b, -1)]))
    found = next(((x, k) for x, k in parts if isinstance(x, Ext) and bound in symbols(x)), None)
    if found is None or abs(found[1]) != 1:
        return None
    extreme, sign = found
    rest = lin([(cmp.a, -sign), (cmp.b, sign), (extreme, 1)])
    op = cmp.op if sign > 0 else _MIRRORED[cmp.op]  # extreme op rest
    if op in ("==", "!="):
        same = all_of(compare(">=", extreme, rest), compare("<=", extreme, rest))
        return same if op == "==" else negate(same)
    each = [compare(op, a, rest) for a in extreme.args]
    return any_of(*each) if (extreme.op == "min") == (op in ("<", "<=")) else all_of(*each)


def terms(expr: Expr | int) -> tuple[tuple[Expr, int], ...]:
    """Return the terms of a size or an index, with their coefficients."""
    return expr.terms if isinstance(expr, Lin) else ((expr, 1),) if isinstance(expr, Expr) else ()


def _factors(expr: Expr) -> tuple[Expr, ...]:
    return (*_factors(expr.a), *_factors(expr.b)) if isinstance(expr, Product) else (expr,)
