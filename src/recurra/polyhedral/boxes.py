"""Split a domain under a condition into disjoint boxes: index-set splitting (Griebl et al., 2000).

    [i<I, j<J] where (i == 0) | (j >= 2)   →   [0<=i<1, j<J]   [1<=i<I, 2<=j<J]

Parts that no box expresses, such as i % 5 == 0, stay conditions. Ends keep their expressions; which
of two ends is larger is decided for known bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from recurra.ir.expr import (
    FALSE,
    TRUE,
    Cmp,
    Expr,
    Ext,
    Lin,
    Logic,
    Sym,
    all_of,
    any_of,
    compare,
    evaluate,
    lin,
    negate,
    substitute,
    symbols,
)
from recurra.ir.types import Domain, Range
from recurra.polyhedral.interval import ends_of, narrow, span

MAX_BOXES = 16  # a condition that needs more is not split


@dataclass(frozen=True)
class Box:
    """The points of a domain at which a condition holds."""

    domain: Domain
    where: Expr = TRUE

    @property
    def points(self) -> dict[str, Expr | int]:
        """The dims with a single point for all bounds, and that point."""
        return {r.dim: r.lo for r in self.domain if r.is_point}


def split_boxes(domain: Domain, condition: Expr, sizes: Mapping[str, int]) -> tuple[Box, ...]:
    """Return disjoint boxes, none empty, of the points at which the condition holds."""
    named = symbols(condition) | domain.mentions()
    return _boxes(domain, condition, tuple((n, sizes[n]) for n in sorted(named & sizes.keys())))


@lru_cache(maxsize=1 << 16)
def _boxes(domain: Domain, condition: Expr, sizes: tuple[tuple[str, int], ...]) -> tuple[Box, ...]:
    """`split_boxes` for only the bounds that are mentioned, so that the cache hits."""
    known = dict(sizes)
    if _is_empty(domain, known):
        return ()
    boxes = tuple(islice(_split(Box(domain), condition, known), MAX_BOXES + 1))
    return boxes if len(boxes) <= MAX_BOXES else (Box(domain, condition),)


def fold_condition(domain: Domain, condition: Expr, sizes: Mapping[str, int]) -> Expr:
    """Return TRUE or FALSE if a condition holds everywhere in a domain or nowhere, else itself.

    Dims that it does not mention are assumed to have points.
    """
    if condition in (TRUE, FALSE):
        return condition
    part = domain.of(symbols(condition))
    if (symbols(condition) | part.mentions()) - set(part.dims) - sizes.keys():
        return condition
    boxes = split_boxes(part, condition, sizes)
    return TRUE if boxes == (Box(part),) else condition if boxes else FALSE


def simplified(domain: Domain, condition: Expr, sizes: Mapping[str, int]) -> Expr:
    """Drop the parts of a condition that hold everywhere in a domain; FALSE if one never does."""
    if isinstance(condition, Logic) and condition.op == "&" and condition.args:
        return all_of(*(simplified(domain, x, sizes) for x in condition.args))
    return fold_condition(domain, condition, sizes)


def bounding_domain(domain: Domain, condition: Expr, sizes: Mapping[str, int]) -> Domain:
    """Return the smallest box in a domain that has all points at which a condition holds."""
    if condition == TRUE:
        return domain
    parts = [box.domain for box in split_boxes(domain, condition, sizes)]
    if not parts:
        return Domain(tuple(replace(r, hi=r.lo) for r in domain))
    return Domain(tuple(hull([x[r.dim] for x in parts], sizes) or r for r in domain))


def hull(ranges: Sequence[Range], sizes: Mapping[str, int]) -> Range | None:
    """Return the smallest range around all of these; None if their ends depend on other dims."""
    if any(r.mentions() - sizes.keys() for r in ranges):
        return None
    lo = min((r.lo for r in ranges), key=lambda e: evaluate(e, sizes))
    hi = max((r.hi for r in ranges), key=lambda e: evaluate(e, sizes))
    return Range(ranges[0].dim, hi, lo)


def _split(box: Box, condition: Expr, sizes: Mapping[str, int]) -> Iterator[Box]:
    """The nonempty parts of a nonempty box at which a condition holds."""
    if box.where == FALSE:
        return
    match condition:
        case Logic(op="&", args=()):
            yield box
        case Logic(op="&", args=(first, *rest)):
            for part in _split(box, first, sizes):
                yield from _split(part, all_of(*rest), sizes)
        case Logic(op="|", args=()):
            return
        case Logic(op="|", args=args):
            for k, part in enumerate(args):
                yield from _split(box, all_of(part, *map(negate, args[:k])), sizes)
        case Cmp():
            yield from _compare(box, condition, sizes)
        case _:
            yield replace(box, where=all_of(box.where, condition))


def _compare(box: Box, cmp: Cmp, sizes: Mapping[str, int]) -> Iterator[Box]:
    """The parts of a box at which a comparison holds."""
    everywhere = _decide(box.domain, cmp, sizes)
    if everywhere is not None:
        if everywhere:
            yield box
        return
    solved = _solve_for_dim(box.domain, cmp, sizes)
    if solved is None:
        cases = _split_min_max(cmp)
        if cases is None:
            yield replace(box, where=all_of(box.where, cmp))
        else:
            yield from _split(box, cases, sizes)
        return
    r, op, end = solved
    after = lin([(end, 1), (1, 1)])
    spans = {
        "==": [(end, after)],
        "!=": [(r.lo, end), (after, r.hi)],
        "<": [(r.lo, end)],
        "<=": [(r.lo, after)],
        ">": [(after, r.hi)],
        ">=": [(end, r.hi)],
    }
    for lo, hi in spans[op]:
        start = max(r.lo, lo, key=lambda e: evaluate(e, sizes))
        stop = min(r.hi, hi, key=lambda e: evaluate(e, sizes))
        part = box.domain.with_range(Range(r.dim, stop, start))
        if not _is_empty(part, sizes):
            yield replace(box, domain=part)


def _solve_for_dim(
    domain: Domain, cmp: Cmp, sizes: Mapping[str, int]
) -> tuple[Range, str, Expr | int] | None:
    """Rewrite a comparison as (dim, operator, expression of bounds); None if that is impossible."""
    gap = lin([(cmp.a, 1), (cmp.b, -1)])
    terms = gap.terms if isinstance(gap, Lin) else ((gap, 1),) if isinstance(gap, Sym) else ()
    dims = [(x, k) for x, k in terms if isinstance(x, Sym) and x.name in domain]
    if len(dims) != 1 or abs(dims[0][1]) != 1:
        return None
    ((x, k),) = dims
    rest = lin([(gap, 1), (x, -k)])
    r = domain[x.name]
    if (symbols(rest) | r.mentions()) - sizes.keys():
        return None
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    op = cmp.op if k > 0 else mirrored.get(cmp.op, cmp.op)
    return r, op, lin([(rest, -k)])


def _split_min_max(cmp: Cmp) -> Expr | None:
    """Rewrite a comparison of a min or max as comparisons of its arguments; None if it has none.

    t == max(t-1, 0)   →   (t == t-1 or t == 0) and t >= t-1 and t >= 0
    """
    gap = lin([(cmp.a, 1), (cmp.b, -1)])
    terms = gap.terms if isinstance(gap, Lin) else ((gap, 1),)
    for x, k in terms:
        if not isinstance(x, Ext):
            continue
        rest = lin([(gap, 1), (x, -k)])
        each = [lin([(rest, 1), (a, k)]) for a in x.args]
        is_least = (x.op == "min") == (k > 0)  # or the greatest of them
        if cmp.op in ("==", "!="):
            one = any_of(*(compare("==", e, 0) for e in each))
            equal = all_of(one, *(compare(">=" if is_least else "<=", e, 0) for e in each))
            return equal if cmp.op == "==" else negate(equal)
        join = any_of if is_least == (cmp.op in ("<", "<=")) else all_of
        return join(*(compare(cmp.op, e, 0) for e in each))
    return None


def _decide(domain: Domain, cmp: Cmp, sizes: Mapping[str, int]) -> bool | None:
    """True if a comparison holds everywhere in a box, False if nowhere; None if unclear."""
    box = ends_of(domain, sizes)
    known = substitute(cmp, sizes)
    if known in (TRUE, FALSE):
        return known == TRUE
    if symbols(known) - box.keys():
        return None
    lo, hi = span(lin([(known.a, 1), (known.b, -1)]), box)
    holds = {
        "==": (lo == hi == 0, lo > 0 or hi < 0),
        "!=": (lo > 0 or hi < 0, lo == hi == 0),
        "<": (hi < 0, lo >= 0),
        "<=": (hi <= 0, lo > 0),
        ">": (lo > 0, hi <= 0),
        ">=": (lo >= 0, hi < 0),
    }
    always, never = holds[known.op]
    if always:
        return True
    return False if never or narrow(box, known) is None else None


def _is_empty(domain: Domain, sizes: Mapping[str, int]) -> bool:
    return any(lo > hi for lo, hi in ends_of(domain, sizes).values())
