"""The interface to isl: sets and relations of named dims, built from text and converted back.

A primed name (`t'`) is the dim of a read's source, so that its sink may have a dim of that name.
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


def isl_text(expr: Expr | int) -> str:
    """Return an expression in isl's notation."""
    match expr:
        case int() | Sym():
            return str(expr)
        case Lin(terms=terms, const=const):
            return "(" + " + ".join([f"{k}*{isl_text(x)}" for x, k in terms] + [str(const)]) + ")"
        case FloorDiv(a=a, n=n):
            return f"floor({isl_text(a)}/{n})"
        case Modulo(a=a, n=n):
            return f"({isl_text(a)} mod {n})"
        case Ext(op=op, args=args):
            return reduce(
                lambda inner, a: f"{op}({isl_text(a)}, {inner})", args[-2::-1], isl_text(args[-1])
            )
        case Cmp(op=op, a=a, b=b):
            return f"({isl_text(a)} {'=' if op == '==' else op} {isl_text(b)})"
        case Logic():
            return _logic(expr)
        case Product():
            raise ValueError(f"{expr} is no quasi-affine index: it multiplies two unknowns")
        case _:
            raise TypeError(f"not an expression: {expr!r}")


def _logic(logic: Logic) -> str:
    if logic.op == "~":
        return f"(not {isl_text(logic.args[0])})"
    if not logic.args:
        return "(0 = 0)" if logic.op == "&" else "(0 = 1)"
    return "(" + (" and " if logic.op == "&" else " or ").join(map(isl_text, logic.args)) + ")"


def box_constraints(domain: Domain, prime: str = "") -> list[str]:
    """The constraints of a domain whose dims have the suffix `prime`."""
    by: dict[str, Expr | int] = {d: Sym(f"{d}{prime}") for d in domain.dims} if prime else {}
    ends = [(isl_text(substitute(r.lo, by)), isl_text(substitute(r.hi, by))) for r in domain]
    return [f"{lo} <= {r.dim}{prime} < {hi}" for r, (lo, hi) in zip(domain, ends, strict=True)]


def params(parts: Iterable[str], names: Iterable[str]) -> str:
    """The prefix `[T, B] -> ` for the names that occur in `parts`."""
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
    """The constraints q = index, or q in the slice, for each dim q of the source."""
    parts: list[str] = []
    for e, q in zip(index, out, strict=True):
        if isinstance(e, Slice):
            parts.append(f"{isl_text(e.lo)} <= {q} < {isl_text(e.hi)}")
            if e.step != 1:
                parts.append(f"({q} - {isl_text(e.lo)}) mod {e.step} = 0")
        else:
            parts.append(f"{q} = {isl_text(e)}")
    return parts


def closure(relation: isl.Map) -> isl.Map:
    """One or more steps of a relation between points, or a superset of these."""
    return relation.transitive_closure()[0]


def simple_map(relation: isl.Map, most: int) -> isl.Map:
    """The relation, or a convex superset if it has more parts and quotients than `most`."""
    if _is_simple(relation.get_basic_maps(), most):
        return relation
    return isl.Map.from_basic_map(relation.simple_hull().remove_divs())


def simple_set(points: isl.Set, most: int) -> isl.Set:
    """The points, or a convex superset if they have more parts and quotients than `most`."""
    return points if _is_simple(points.get_basic_sets(), most) else hull(points)


def _is_simple(parts: Sequence[isl.BasicSet | isl.BasicMap], most: int) -> bool:
    return sum(1 + part.dim(isl.dim_type.div) for part in parts) <= most


def hull(points: isl.Set) -> isl.Set:
    """A convex superset of the points, in the directions of their bounds."""
    return isl.Set.from_basic_set(points.simple_hull().remove_divs())


def widen(points: isl.Set, more: isl.Set) -> isl.Set:
    """A convex superset of both: the constraints of the first that the second satisfies.

    A set that is widened again and again has fewer constraints each time, so this terminates.
    """
    if points.is_empty():
        return hull(more)
    out = isl.BasicSet.universe(points.get_space())
    for constraint in points.simple_hull().remove_divs().get_constraints():
        aff = constraint.get_aff()
        for side in (aff, aff.neg()) if constraint.is_equality() else (aff,):
            narrower = out.add_constraint(isl.Constraint.inequality_from_aff(side))
            out = narrower if more.is_subset(isl.Set.from_basic_set(narrower)) else out
    return isl.Set.from_basic_set(out)


def condition(points: isl.Set, among: isl.Set) -> Expr:
    """The condition that holds at exactly these of the points `among`."""
    if points.is_empty() or among.is_subset(points):
        return FALSE if points.is_empty() else TRUE
    kinds = isl.dim_type
    part = points.coalesce().gist(among).coalesce().remove_redundancies()
    part = part.move_dims(kinds.param, part.n_param(), kinds.set, 0, part.n_dim())
    expr: Any = from_c(isl.AstBuild.alloc(CONTEXT).expr_from_set(part.params()).to_C_str())
    return TRUE if expr is None else expr  # without a form: a superset of the points


@lru_cache(maxsize=1 << 16)
def first(box: tuple[tuple[int, int], ...], where: Expr) -> tuple[int, ...] | None:
    """The first point d0, d1, .. of a box, ends included, at which `where` holds."""
    dims = [f"d{k}" for k in range(len(box))]
    limits = [f"{lo} <= {d} <= {hi}" for d, (lo, hi) in zip(dims, box, strict=True)]
    points = isl.Set(
        f"{{ [{', '.join(dims)}] : {' and '.join([*limits, isl_text(where)])} }}", CONTEXT
    )
    if points.is_empty():
        return None
    p = points.lexmin().sample_point()
    return tuple(p.get_coordinate_val(isl.dim_type.set, k).to_python() for k in range(len(box)))


@lru_cache(maxsize=1 << 16)
def satisfiable(where: Expr) -> bool:
    """Tell whether the condition holds for any integers at all."""
    dims = sorted(symbols(where))
    by: dict[str, Expr | int] = {d: Sym(f"d{k}") for k, d in enumerate(dims)}
    body = isl_text(substitute(where, by))
    return not isl.Set(f"{{ [{', '.join(map(str, by.values()))}] : {body} }}", CONTEXT).is_empty()


@lru_cache(maxsize=1 << 16)
def gap(
    left: str, right: str, dims: tuple[str, ...], constraints: tuple[str, ...]
) -> tuple[int | None, int | None]:
    """The least and greatest left - right; None: no bound. Names of no dims are at least 1."""
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
    """The tightest lo <= dim < hi in terms of `names`; None if it has no closed form.

    With `hull`, the one of a convex superset, which has a closed form more often.
    """
    body = " and ".join(constraints)
    others = [f for f in free if f != dim]
    s = isl.Set(f"{params([body], names)}{{ [{', '.join([dim, *others])}] : {body} }}", CONTEXT)
    s = s.project_out(isl.dim_type.set, 1, len(others)) if others else s
    s = s.coalesce()  # max(t-3,0) splits the set, and its ends would distinguish cases
    s = isl.Set.from_basic_set(s.simple_hull()) if hull else s
    if s.is_empty():
        return (0, 0)
    try:
        ends = (_closed(s.dim_min(0), s.params()), _closed(s.dim_max(0), s.params()))
    except isl.Error:
        return None
    if ends[0] is None or ends[1] is None:
        return None
    return ends[0], distribute(ends[1] + 1)


def distribute(expr: Expr | int) -> Expr | int:
    """Rewrite min(a, b) + c as min(a+c, b+c), and max alike."""
    match expr:
        case Lin(terms=((Ext(op=op, args=args), 1),), const=c):
            return (minimum if op == "min" else maximum)(*(lin([(a, 1), (c, 1)]) for a in args))
        case _:
            return expr


def largest(expr: Expr | int, domain: Domain) -> Expr | int | None:
    """An upper bound >= 0 of `expr` over a box, in terms of bounds only.

    It is the least constant if there is one, else the largest value; None without a closed form.
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
    """The maximum of max(e, 0) over all bounds, each at least 1; None if there is none."""
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
    """Upper bounds of `expr`: with one argument of each min, and of each max that is subtracted."""
    terms, const = (expr.terms, expr.const) if isinstance(expr, Lin) else (((expr, 1),), 0)
    mins_first = sorted(terms, key=lambda p: p[1] < 0)
    for x, k in mins_first:  # subtracted terms may cancel part of an argument
        if isinstance(x, Ext) and (x.op == "min") == (k > 0):
            others = [(y, n) for y, n in (*terms, (const, 1)) if y is not x]
            return [b for a in x.args for b in _above(lin([*others, (a, k)]))]
    return [expr]


def _as_largest(expr: Expr | int, domain: Domain) -> tuple[str, tuple[str, ...]]:
    """A name for max(e, 0), and its constraints over a box; raises ValueError as `text` does."""
    box, e, top = box_constraints(domain), isl_text(expr), "largest"
    while top in mentioned([e, *box]):
        top += "_"
    return top, (f"{top} = max(0, {e})", *box)


def _top(expr: Expr | int, domain: Domain) -> Expr | int | None:
    """The maximum of max(e, 0) in terms of bounds, if it is one expression."""
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
    """Tell whether `condition` holds at every point of a box `where` others do, for all bounds.

    False if unsure.
    """
    try:
        constraints = (
            f"not {isl_text(condition)}",
            *box_constraints(domain),
            *map(isl_text, where),
        )
    except ValueError:
        return False
    names = tuple(sorted(mentioned(constraints) - set(domain.dims)))
    return make_set(domain.dims, constraints, names).is_empty()


def _closed(value: isl.PwAff, context: isl.Set) -> Expr | int | None:
    """Convert an isl quantity to an expression; None if it distinguishes cases."""
    build = isl.AstBuild.from_context(context)
    return from_c(build.expr_from_pw_aff(value.coalesce().gist(context)).to_C_str())


_WORDS = {"and", "or", "not", "mod", "floor", "min", "max"}


def mentioned(constraints: Iterable[str]) -> set[str]:
    """The names of dims and bounds that occur."""
    return set(re.findall(r"[A-Za-z_]\w*", " ".join(constraints))) - _WORDS
