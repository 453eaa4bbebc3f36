"""Interval arithmetic of index expressions over a box of integers: the cheap proof, before isl.

`span` may be too wide, never too narrow: its proofs are right, and isl decides the other cases.
"""

from __future__ import annotations

from collections.abc import Mapping

from recurra.ir.expr import (
    Cmp,
    Expr,
    Ext,
    FloorDiv,
    Lin,
    Logic,
    Modulo,
    Product,
    Sym,
    lin,
    substitute,
)
from recurra.ir.types import Domain

Box = Mapping[str, tuple[int, int]]  # lo <= dim <= hi, both ends included


def span(expr: Expr | int, box: Box) -> tuple[int, int]:
    """The least and greatest value that `expr` may have on the box."""
    match expr:
        case int():
            return expr, expr
        case Sym(name=name):
            return box[name]
        case Lin(terms=terms, const=const):
            lo = hi = const
            for x, k in terms:
                a, b = span(x, box)
                lo, hi = lo + (k * a if k > 0 else k * b), hi + (k * b if k > 0 else k * a)
            return lo, hi
        case Product(a=a, b=b):
            ends = [x * y for x in span(a, box) for y in span(b, box)]
            return min(ends), max(ends)
        case FloorDiv(a=a, n=n):
            lo, hi = span(a, box)
            return lo // n, hi // n
        case Modulo(a=a, n=n):
            lo, hi = span(a, box)
            return (lo % n, hi % n) if lo // n == hi // n else (0, n - 1)
        case Ext(op=op, args=args):
            f = min if op == "min" else max
            ends_of = [span(a, box) for a in args]
            return f(a for a, _ in ends_of), f(b for _, b in ends_of)
        case _:
            raise TypeError(f"not an integer expression: {expr!r}")


def ends_of(domain: Domain, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The first and last point of each dim, over all points of the dims that its ends mention."""
    box: dict[str, tuple[int, int]] = {}
    for r in domain:
        lo, hi = substitute(r.lo, sizes), substitute(r.hi, sizes)
        box[r.dim] = (span(lo, box)[0], span(hi, box)[1] - 1)
    return box


def box_of(domain: Domain, sizes: Mapping[str, int]) -> Box | None:
    """A box around the points of a domain; None if it has no points, or bounds are unknown."""
    if domain.mentions() - set(domain.dims) - sizes.keys():
        return None
    box = ends_of(domain, sizes)
    return box if all(lo <= hi for lo, hi in box.values()) else None


def narrow(box: Box, where: Expr) -> Box | None:
    """A box around the points where the condition holds; None if it clearly never does."""
    match where:
        case Logic(op="&", args=args):
            part: Box | None = box
            for a in args:
                part = None if part is None else narrow(part, a)
            return part
        case Logic(op="|", args=()):
            return None
        case Cmp(op=op, a=a, b=b) if op != "!=":
            gap = lin([(a, 1), (b, -1)])
            if op in ("==", "<=", "<"):
                box = _at_most_zero(box, lin([(gap, 1), (1 if op == "<" else 0, 1)]))
            if op in ("==", ">=", ">"):
                box = _at_most_zero(box, lin([(gap, -1), (1 if op == ">" else 0, 1)]))
            return box if all(lo <= hi for lo, hi in box.values()) else None
        case _:
            return box


def _at_most_zero(box: Box, expr: Expr | int) -> Box:
    """The box without the points that `e <= 0` excludes, one dim at a time."""
    out = dict(box)
    for x, k in expr.terms if isinstance(expr, Lin) else ((expr, 1),):
        if isinstance(x, Sym):
            rest, _ = span(lin([(expr, 1), (x, -k)]), box)
            lo, hi = out[x.name]
            # k·x <= -rest
            out[x.name] = (lo, min(hi, -rest // k)) if k > 0 else (max(lo, -(-rest // -k)), hi)
    return out
