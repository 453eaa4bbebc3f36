"""The door to isl: sets and relations of named dims, built from and turned back into text.

A primed name (`t'`) is the dim of a read's source, where its sink has one of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import islpy as isl

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
    lin,
    maximum,
    minimum,
    substitute,
    symbols,
)
from recurra.ir.graph import Index, Slice
from recurra.ir.types import Domain
from recurra.polyhedral.c_expression import from_c

Map: TypeAlias = isl.Map
Set: TypeAlias = isl.Set
CONTEXT = isl.Context()
CONTEXT.set_ast_build_detect_min_max(1)


def text(expr: Expr | int) -> str:
    """An expression in isl's notation."""
    match expr:
        case int() | Sym():
            return str(expr)
        case Lin(terms=terms, const=const):
            return "(" + " + ".join([f"{k}*{text(x)}" for x, k in terms] + [str(const)]) + ")"
        case FloorDiv(a=a, n=n):
            return f"floor({text(a)}/{n})"
        case Modulo(a=a, n=n):
            return f"({text(a)} mod {n})"
        case Ext(op=op, args=args):
            return reduce(
                lambda inner, a: f"{op}({text(a)}, {inner})", args[-2::-1], text(args[-1])
            )
        case Cmp(op=op, a=a, b=b):
            return f"({text(a)} {'=' if op == '==' else op} {text(b)})"
        case Logic():
            return _logic(expr)
        case Product():
            raise ValueError(f"{expr} is no quasi-affine index: it multiplies two unknowns")
        case _:
            raise TypeError(f"not an expression: {expr!r}")


def _logic(logic: Logic) -> str:
    if logic.op == "~":
        return f"(not {text(logic.args[0])})"
    if not logic.args:
        return "(0 = 0)" if logic.op == "&" else "(0 = 1)"
    return "(" + (" and " if logic.op == "&" else " or ").join(map(text, logic.args)) + ")"


def box_constraints(domain: Domain, prime: str = "") -> list[str]:
    """The constraints of a domain, its dims primed on demand."""
    by: dict[str, Expr | int] = {d: Sym(f"{d}{prime}") for d in domain.dims} if prime else {}
    ends = [(text(substitute(r.lo, by)), text(substitute(r.hi, by))) for r in domain]
    return [f"{lo} <= {r.dim}{prime} < {hi}" for r, (lo, hi) in zip(domain, ends, strict=True)]


def params(parts: Iterable[str], names: Iterable[str]) -> str:
    """`[T, B] -> ` for the bounds that occur."""
    words = set(re.findall(r"[A-Za-z_]\w*'?", " ".join(parts)))
    used = [n for n in names if n in words]
    return f"[{', '.join(used)}] -> " if used else ""


def make_set(dims: Sequence[str], constraints: Sequence[str], bounds: Sequence[str]) -> isl.Set:
    body = " and ".join(constraints)
    return isl.Set(
        f"{params([body], bounds)}{{ [{', '.join(dims)}]{' : ' + body if body else ''} }}", CONTEXT
    )


def make_map(
    dims: Sequence[str], out: Sequence[str], constraints: Sequence[str], bounds: Sequence[str]
) -> isl.Map:
    body = " and ".join(constraints)
    head = f"{params([body], bounds)}{{ [{', '.join(dims)}] -> [{', '.join(out)}]"
    return isl.Map(f"{head}{' : ' + body if body else ''} }}", CONTEXT)


def index_constraints(index: Sequence[Index], out: Sequence[str]) -> list[str]:
    """q = index, or q in the slice, for each dim q of the source."""
    parts: list[str] = []
    for e, q in zip(index, out, strict=True):
        if isinstance(e, Slice):
            parts.append(f"{text(e.lo)} <= {q} < {text(e.hi)}")
            if e.step != 1:
                parts.append(f"({q} - {text(e.lo)}) mod {e.step} = 0")
        else:
            parts.append(f"{q} = {text(e)}")
    return parts


def closure(relation: isl.Map) -> isl.Map:
    """One step or more of a relation from points to points, or more than these."""
    return relation.transitive_closure()[0]


def simple_map(relation: isl.Map, most: int) -> isl.Map:
    """The relation, or a convex one around it if it has more parts and quotients than `most`."""
    if _is_simple(relation.get_basic_maps(), most):
        return relation
    return isl.Map.from_basic_map(relation.simple_hull().remove_divs())


def simple_set(points: isl.Set, most: int) -> isl.Set:
    """The points, or those of a convex set around them if they are of more parts than `most`."""
    return points if _is_simple(points.get_basic_sets(), most) else hull(points)


def _is_simple(parts: Sequence[isl.BasicSet | isl.BasicMap], most: int) -> bool:
    return sum(1 + part.dim(isl.dim_type.div) for part in parts) <= most


def hull(points: isl.Set) -> isl.Set:
    """The points between some, in every direction that their bounds have."""
    return isl.Set.from_basic_set(points.simple_hull().remove_divs())


def widened(points: isl.Set, more: isl.Set) -> isl.Set:
    """A convex set around both, by those limits of the first that the second keeps.

    So a set that grows again and again has fewer limits each time, and comes to an end.
    """
    if points.is_empty():
        return hull(more)
    out = isl.BasicSet.universe(points.get_space())
    for limit in points.simple_hull().remove_divs().get_constraints():
        aff = limit.get_aff()
        for side in (aff, aff.neg()) if limit.is_equality() else (aff,):
            kept = out.add_constraint(isl.Constraint.inequality_from_aff(side))
            out = kept if more.is_subset(isl.Set.from_basic_set(kept)) else out
    return isl.Set.from_basic_set(out)


def condition(points: isl.Set, among: isl.Set) -> Expr:
    """The condition that holds at the points, and at no other of those `among`."""
    if points.is_empty() or among.is_subset(points):
        return FALSE if points.is_empty() else TRUE
    kinds = isl.dim_type
    found = points.coalesce().gist(among).coalesce().remove_redundancies()
    found = found.move_dims(kinds.param, found.n_param(), kinds.set, 0, found.n_dim())
    told: Any = from_c(isl.AstBuild.alloc(CONTEXT).expr_from_set(found.params()).to_C_str())
    return TRUE if told is None else told  # no form: more points than there are


def sample(points: isl.Set | isl.Map) -> dict[str, int] | None:
    """One point, by name, or None of an empty set. For a map: the point of its domain."""
    if points.is_empty():
        return None
    s = points.domain() if isinstance(points, isl.Map) else points
    p = s.sample_point()
    kinds = (
        (isl.dim_type.param, s.dim(isl.dim_type.param)),
        (isl.dim_type.set, s.dim(isl.dim_type.set)),
    )
    return {
        str(s.get_dim_name(kind, k)): p.get_coordinate_val(kind, k).to_python()
        for kind, n in kinds
        for k in range(n)
    }


@lru_cache(maxsize=1 << 16)
def first(box: tuple[tuple[int, int], ...], where: Expr) -> tuple[int, ...] | None:
    """The first point of a box, ends included, at which `where` holds of d0, d1, .."""
    dims = [f"d{k}" for k in range(len(box))]
    limits = [f"{lo} <= {d} <= {hi}" for d, (lo, hi) in zip(dims, box, strict=True)]
    points = isl.Set(f"{{ [{', '.join(dims)}] : {' and '.join([*limits, text(where)])} }}", CONTEXT)
    if points.is_empty():
        return None
    p = points.lexmin().sample_point()
    return tuple(p.get_coordinate_val(isl.dim_type.set, k).to_python() for k in range(len(box)))


@lru_cache(maxsize=1 << 16)
def satisfiable(where: Expr) -> bool:
    """Does the condition hold for any integers at all?"""
    dims = sorted(symbols(where))
    by: dict[str, Expr | int] = {d: Sym(f"d{k}") for k, d in enumerate(dims)}
    body = text(substitute(where, by))
    return not isl.Set(f"{{ [{', '.join(map(str, by.values()))}] : {body} }}", CONTEXT).is_empty()


@lru_cache(maxsize=1 << 16)
def gap(
    left: str, right: str, dims: tuple[str, ...], constraints: tuple[str, ...]
) -> tuple[int | None, int | None]:
    """The least and greatest a - b; None: no bound. What is no dim is a bound, at least 1."""
    every = sorted({*dims, *mentioned(constraints)})
    positive = [f"{n} >= 1" for n in every if n not in dims]
    body = " and ".join([*positive, *constraints, f"gap = {left} - {right}"])
    s = isl.Set(f"{{ [gap] : exists {', '.join([*every, right])} : {body} }}", CONTEXT)
    if s.is_empty():
        return 0, 0
    low, high = s.dim_min_val(0), s.dim_max_val(0)
    return low.to_python() if low.is_int() else None, high.to_python() if high.is_int() else None


@lru_cache(maxsize=1 << 16)
def span(
    dim: str,
    free: tuple[str, ...],
    constraints: tuple[str, ...],
    names: tuple[str, ...],
    hull: bool = False,
) -> tuple[Expr | int, Expr | int] | None:
    """The tightest lo <= dim < hi in terms of `names`; None where it has no closed form.

    With `hull`, that of a convex set around the points: it more often has one.
    """
    body = " and ".join(constraints)
    others = [f for f in free if f != dim]
    s = isl.Set(f"{params([body], names)}{{ [{', '.join([dim, *others])}] : {body} }}", CONTEXT)
    s = s.project_out(isl.dim_type.set, 1, len(others)) if others else s
    s = s.coalesce()  # the split of a max(t-3,0) would give its ends a case distinction
    s = isl.Set.from_basic_set(s.simple_hull()) if hull else s
    if s.is_empty():
        return (0, 0)
    try:
        ends = (_closed(s.dim_min(0), s.params()), _closed(s.dim_max(0), s.params()))
    except isl.Error:
        return None
    if ends[0] is None or ends[1] is None:
        return None
    return ends[0], _after(ends[1])


def _after(expr: Expr | int) -> Expr | int:
    """e + 1, inside of min and max."""
    if isinstance(expr, Ext):
        return (minimum if expr.op == "min" else maximum)(*(a + 1 for a in expr.args))
    return expr + 1


def largest(expr: Expr | int, domain: Domain) -> Expr | int | None:
    """An upper bound >= 0 of `expr` over a box, in terms of bounds only.

    The least constant if there is one, else the largest value; None where neither is closed.
    """
    constant = _most(expr, domain)
    if constant is not None:
        return constant
    exact = _top(expr, domain)
    if exact is not None:
        return exact
    tops = [t for b in _above(expr) if (t := _top(b, domain)) is not None]
    return minimum(*tops) if tops else None


@lru_cache(maxsize=1 << 16)
def _most(expr: Expr | int, domain: Domain) -> int | None:
    """The largest of max(e, 0) whatever the bounds, each at least 1; None: there is none."""
    try:
        top, constraints = _as_largest(expr, domain)
    except ValueError:
        return None
    names = sorted(mentioned(constraints) - {top, *domain.dims})
    body = " and ".join([*(f"{n} >= 1" for n in names), *constraints])
    s = isl.Set(f"{{ [{', '.join([top, *domain.dims, *names])}] : {body} }}", CONTEXT)
    most = s.dim_max_val(0)
    return 0 if s.is_empty() else most.to_python() if most.is_int() else None


def _above(expr: Expr | int) -> list[Expr | int]:
    """Expressions no less than `expr`: one argument of each min, and of each max subtracted."""
    terms, const = (expr.terms, expr.const) if isinstance(expr, Lin) else (((expr, 1),), 0)
    mins_first = sorted(terms, key=lambda p: p[1] < 0)
    for x, k in mins_first:  # what is subtracted may cancel a part of one
        if isinstance(x, Ext) and (x.op == "min") == (k > 0):
            others = [(y, n) for y, n in (*terms, (const, 1)) if y is not x]
            return [b for a in x.args for b in _above(lin([*others, (a, k)]))]
    return [expr]


def _as_largest(expr: Expr | int, domain: Domain) -> tuple[str, tuple[str, ...]]:
    """A name for max(e, 0), and what holds of it and a point; raises ValueError as `text` does."""
    box, e, top = box_constraints(domain), text(expr), "largest"
    while top in mentioned([e, *box]):
        top += "_"
    return top, (f"{top} = max(0, {e})", *box)


def _top(expr: Expr | int, domain: Domain) -> Expr | int | None:
    """The largest of max(e, 0), where it is one expression."""
    try:
        top, constraints = _as_largest(expr, domain)
    except ValueError:
        return None
    names = tuple(sorted(mentioned(constraints) - {top, *domain.dims}))
    found = span(top, (top, *domain.dims), constraints, names)
    if found is None:
        return None
    most: Any = found[1] - 1  # pyright: ignore[reportOperatorIssue]
    return max(most, 0) if isinstance(most, int) else most


@lru_cache(maxsize=1 << 16)
def always(condition: Expr, domain: Domain, where: tuple[Expr, ...] = ()) -> bool:
    """Does `condition` hold at every point of a box `where` others do, whatever its bounds?

    False when unsure.
    """
    try:
        constraints = (f"not {text(condition)}", *box_constraints(domain), *map(text, where))
    except ValueError:
        return False
    names = tuple(sorted(mentioned(constraints) - set(domain.dims)))
    return make_set(domain.dims, constraints, names).is_empty()


def _closed(value: isl.PwAff, context: isl.Set) -> Expr | int | None:
    """An isl quantity as an expression, if it is one without case distinctions."""
    build = isl.AstBuild.from_context(context)
    return from_c(build.expr_from_pw_aff(value.coalesce().gist(context)).to_C_str())


_WORDS = {"and", "or", "not", "mod", "floor", "min", "max"}


def mentioned(constraints: Iterable[str]) -> set[str]:
    """The dims and bounds that occur."""
    return set(re.findall(r"[A-Za-z_]\w*", " ".join(constraints))) - _WORDS
