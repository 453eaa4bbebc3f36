"""How far apart, along a dim, a read and what it reads can be: p - q for reader p and source q.

Bounds are taken for every size of the bounds, so a lag is finite only if it is so for all T.
"""

from __future__ import annotations

from dataclasses import dataclass

from recurra.ir.expr import Expr, Prod, symbols, walk
from recurra.ir.graph import Index, Slice, index_symbols
from recurra.ir.types import Domain, is_shift
from recurra.sets import isl


@dataclass(frozen=True)
class Lag:
    """low <= p - q <= high; None: no bound."""

    low: int | None
    high: int | None

    @property
    def exact(self) -> int | None:
        return self.low if self.low == self.high else None

    def __neg__(self) -> Lag:
        return Lag(
            None if self.high is None else -self.high, None if self.low is None else -self.low
        )

    def __add__(self, c: int) -> Lag:
        return Lag(
            None if self.low is None else self.low + c, None if self.high is None else self.high + c
        )


<<<<<<< HEAD
Spans = Mapping[str, Lag]


def spans(domain: Domain, when: Expr | None) -> dict[str, Lag]:
    """The constant ends of each dim, narrowed by a branch condition."""
    out = {r.dim: Lag(_int(r.lo), _top(r.hi)) for r in domain}
    for c in _conjuncts(when):
        if isinstance(c, Cmp) and isinstance(c.a, Sym) and isinstance(c.b, int) and c.a.name in out:
            out[c.a.name] = _narrow(out[c.a.name], c.op, c.b)
    return out


def _conjuncts(when: Expr | None) -> tuple[Expr, ...]:
    if isinstance(when, Logic) and when.op == "&":
        return when.args
    return () if when is None else (when,)


def _narrow(s: Lag, op: str, k: int) -> Lag:
    low, high = s.low, s.high
    at_least = {">=": k, ">": k + 1, "==": k}.get(op)
    at_most = {"<=": k, "<": k - 1, "==": k}.get(op)
    if at_least is not None:
        low = at_least if low is None else max(low, at_least)
    if at_most is not None:
        high = at_most if high is None else min(high, at_most)
    return Lag(low, high)


def _int(e: Expr | int) -> int | None:
    return e if isinstance(e, int) else None


def _top(e: Expr | int) -> int | None:
    return e - 1 if isinstance(e, int) else None


def lag(dim: str, index: Index, at: Spans, when: Expr | None = None) -> Lag:
    """Bounds of p - q along `dim`, p in `at`, q = `index` (any point of a slice)."""
    if when is not None and not isinstance(index, Slice):
        for c in _conjuncts(when):  # t == T-1 makes x[T-1] a read of the same point
            if (
                isinstance(c, Cmp)
                and c.op == "=="
                and c
                in (
                    compare("==", Sym(dim), index),
                    compare("==", index, Sym(dim)),
                )
            ):
                return Lag(0, 0)
    if isinstance(index, Slice):
        first, last = _gap(dim, index.lo, at), _gap(dim, index.hi, at) + 1
        return Lag(last.low, first.high)
    return _gap(dim, index, at)


def _gap(dim: str, e: Expr | int, at: Spans) -> Lag:
    """Bounds of dim - e."""
    match e:
        case Ext(op="min", args=args):
            parts = [_gap(dim, a, at) for a in args]
            return Lag(_most(p.low for p in parts), _most((p.high for p in parts), strict=True))
        case Ext(op="max", args=args):
            parts = [_gap(dim, a, at) for a in args]
            return Lag(_least((p.low for p in parts), strict=True), _least(p.high for p in parts))
        case Div(a=a, n=n) if (c := is_shift(a, dim)) is not None and (at[dim].low or 0) >= 0:
            # t - (t+c)//n never falls below its value at the smallest t
            t = at[dim].low or 0
            return Lag(t - (t + c) // n, None)
        case _:
            return interval(lin([(Sym(dim), 1), (e, -1)]), at)


def _most(values: Iterable[int | None], strict: bool = False) -> int | None:
    found = list(values)
    if strict and None in found:
        return None
    return max((v for v in found if v is not None), default=None)


def _least(values: Iterable[int | None], strict: bool = False) -> int | None:
    found = list(values)
    if strict and None in found:
        return None
    return min((v for v in found if v is not None), default=None)


def interval(e: Expr | int, at: Spans) -> Lag:
    """Bounds of an expression; a bound symbol is anything from 1 on."""
    match e:
        case int():
            return Lag(e, e)
        case Sym(name=name):
            return at.get(name, Lag(1, None))
        case Mod(n=n):
            return Lag(0, n - 1)
        case Div(a=a, n=n):
            s = interval(a, at)
            return Lag(
                None if s.low is None else s.low // n, None if s.high is None else s.high // n
            )
        case Lin(terms=terms, const=const):
            low: int | None = const
            high: int | None = const
            for x, k in terms:
                s = interval(x, at)
                ends = (s.low, s.high) if k > 0 else (s.high, s.low)
                low = None if low is None or ends[0] is None else low + k * ends[0]
                high = None if high is None or ends[1] is None else high + k * ends[1]
            return Lag(low, high)
        case Ext(op=op, args=args):
            parts = [interval(a, at) for a in args]
            pick = _least if op == "min" else _most
            loose = op == "max"
            return Lag(
                pick((p.low for p in parts), not loose), pick((p.high for p in parts), loose)
            )
        case Prod():
            return Lag(None, None)
        case _:
            return Lag(None, None)
=======
def lag(dim: str, index: Index, sink: Domain, when: Expr | None = None) -> Lag:
    """The tightest bounds of p - q along `dim`, p in `sink` where `when` holds, q = `index` (or in it)."""
    shift = None if isinstance(index, Slice) else is_shift(index, dim)
    if shift is not None:
        return Lag(-shift, -shift)
    ends = (index.lo, index.hi) if isinstance(index, Slice) else (index,)
    if any(isinstance(x, Prod) for e in ends for x in walk(e)):
        return Lag(None, None)
    used = {dim} | index_symbols(index) | (set() if when is None else symbols(when))
    within = Domain(tuple(r for r in sink if r.dim in used))
    chosen = [] if when is None else [isl.text(when)]
    relation = isl.index_constraints([index], [f"{dim}'"])
    constraints = tuple([*isl.inside(within), *chosen, *relation])
    return Lag(*isl.gap(dim, f"{dim}'", within.dims, constraints))
>>>>>>> fuzz
