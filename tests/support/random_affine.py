"""Random index expressions, conditions and reads, and what they mean by enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from hypothesis import strategies as st

from recurra.ir.expr import (
    Expr,
    Sym,
    all_of,
    any_of,
    compare,
    div,
    evaluate,
    lin,
    maximum,
    minimum,
    mod,
    negate,
)
from recurra.ir.graph import Index, Ref, Slice
from recurra.ir.types import Domain, Range

DIMS = (Range("s", Sym("S")), Range("t", Sym("T")))
Env = dict[str, int]


@st.composite
def affine(draw: st.DrawFn, names: str = "sstttST", depth: int = 2) -> Expr | int:
    """Mostly shifts, sometimes // % min max of sums."""
    kind = draw(st.integers(0, 9))
    if kind <= 3:
        return lin([(Sym(draw(st.sampled_from(names))), 1), (draw(st.integers(-2, 2)), 1)])
    if kind <= 5 or depth == 0:
        terms = [(Sym(n), draw(st.integers(-2, 2))) for n in draw(st.sets(st.sampled_from(names)))]
        return lin([*sorted(terms, key=str), (draw(st.integers(-2, 3)), 1)])
    a = draw(affine(names, depth - 1))
    if kind <= 7:
        return (div if kind == 6 else mod)(a, draw(st.integers(1, 4)))
    return (minimum if kind == 8 else maximum)(a, draw(affine(names, depth - 1)))


@st.composite
def condition(draw: st.DrawFn, names: str = "sstttST", depth: int = 1) -> Expr:
    """Comparisons, mostly of one dim, under & | ~."""
    kind = draw(st.integers(0, 7)) if depth else 0
    if kind <= 4:
        op = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
        left = Sym(draw(st.sampled_from(names))) if kind <= 3 else draw(affine(names))
        return compare(op, left, draw(affine(names)) if kind % 2 else draw(st.integers(0, 4)))
    if kind == 5:
        return negate(draw(condition(names, depth - 1)))
    parts = draw(st.lists(condition(names, depth - 1), min_size=1, max_size=2))
    return (all_of if kind == 6 else any_of)(*parts)


@st.composite
def index(draw: st.DrawFn, r: Range) -> Index:
    """The identity, an expression, or a slice."""
    kind = draw(st.integers(0, 7))
    if kind <= 1:
        return r.sym
    if kind <= 4:
        return draw(affine())
    lo = draw(st.sampled_from([0, r.sym, r.sym - 1, maximum(r.sym - 1, 0)]))
    hi = draw(st.sampled_from([r.hi, r.sym, r.sym + 2, minimum(r.sym + 2, r.hi)]))
    if kind == 7:
        lo, hi = draw(affine()), draw(affine())
    return Slice(lo, hi, draw(st.integers(1, 3)))


def points(domain: Domain, env: Env) -> Iterator[Env]:
    """Every point, with the bounds."""
    spans = [range(evaluate(r.lo, env), evaluate(r.hi, env)) for r in domain]
    for p in product(*spans):
        yield {**env, **dict(zip(domain.dims, p, strict=True))}


def asked(ref: Ref, env: Env) -> Iterator[tuple[int, ...]]:
    """Every point that a read asks for."""
    spans: list[Any] = []
    for e in ref.index:
        if isinstance(e, Slice):
            spans.append(range(evaluate(e.lo, env), evaluate(e.hi, env), e.step))
        else:
            spans.append((evaluate(e, env),))
    return product(*spans)


def holds(c: Expr, env: Env) -> bool:
    return bool(evaluate(c, env))
