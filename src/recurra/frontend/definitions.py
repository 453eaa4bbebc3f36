"""Assignment to brackets: x[b, i, t+1] = e adds a branch to the definition of x."""

from __future__ import annotations

from typing import Any

from recurra.analysis.affine import quasi_affine
from recurra.errors import DomainError, ShapeError, here
from recurra.frontend import reshaping
from recurra.frontend.index_arguments import condition, unwrap
from recurra.frontend.index_keys import place_of, range_of, written
from recurra.frontend.tensor_base import Operand, Tensor
from recurra.frontend.tensor_conversion import cast_to_declared
from recurra.ir import expr as ex
from recurra.ir.expr import Expr, symbols
from recurra.ir.graph import Slice
from recurra.ir.types import Domain, Range, Type, is_shift
from recurra.ops import indexing
from recurra.polyhedral import isl


def define(x: Operand, keys: tuple[object, ...], value: object) -> None:
    """Add the branch x[keys] = value, under the conditions among the keys."""
    _name_after_variable(x)
    node = x.graph[x.name]
    if x.indexed:
        point = x.called
        raise DomainError.at_user_line(
            f"elements of {point} are not assigned",
            facts="an equation gives a value as a whole, at the points that its brackets name",
            hint=f"write all of them: {point} = rc.stack([..]), or rc.where(rc.arange(n) == k, ..)",
        )
    if x.name not in x.builder.branches:
        raise DomainError.at_user_line(
            f"{x.called} already has its equation",
            facts=f"it is {x!r}, an expression, which has a value at every point",
            hint=f"write {x.called} = {x.called} + 1.0 for another tensor; branches are written of "
            "what rc.like(type, domain) declares",
        )
    assert isinstance(node.type, Type), f"{x.name} is the results of a call"
    value = cast_to_declared(x.kind, x.name, value, node.type)
    conditions = [c for k in keys if (c := condition(k)) is not None]
    places = [unwrap(k) for k in keys if condition(k) is None] or list(node.domain.identity)
    if conditions and len(keys) == len(node.domain):
        # a condition in the place of a dim chooses among all points of it
        pairs = [(k, r.sym) for k, r in zip(keys, node.domain, strict=True)]
        places = [unwrap(k) if condition(k) is None else dim for k, dim in pairs]
    if len(places) != len(node.domain):
        raise DomainError.at_user_line(
            f"{x.name} is defined at {len(places)} expressions",
            facts=f"its domain is {node.domain}",
            hint=f"write {x.called}[{', '.join(node.domain.dims)}] = ...",
        )
    value, places, ranges = _ranges(x, places, value)
    conditions += ranges
    value = _of_shape(x, value, node.type)
    _no_other_dims(x.name, node.domain, value)
    where: list[Expr] = []
    inverse: dict[str, Expr | int] = {}  # the point of the value, in dims of x
    for r, e in zip(node.domain, places, strict=True):
        c = None if isinstance(e, slice) else is_shift(e, r.dim)
        if c is None:
            where.append(ex.compare("==", r.sym, _fixed_place(x, e, r)))
        elif c:
            inverse[r.dim] = r.sym - c
    quasi_affine("the condition", ex.all_of(*conditions), here())
    where += [ex.substitute(e, inverse) for e in conditions]
    for r in node.domain:
        where += _edges(r, inverse.get(r.dim, r.sym), value.domain, node.domain, where)
    folded = ex.TRUE in conditions
    x.builder.define(x.name, ex.all_of(*where), value.ref.at(inverse), folded)


def _name_after_variable(target: Operand) -> None:
    """Rename a declared tensor without branches after the user's variable, if that name is free."""
    name, builder = target.called, target.builder
    is_new = target.name not in builder.final and builder.branches.get(target.name) == []
    if is_new and not target.indexed and name.isidentifier() and name not in builder.nodes:
        builder.rename({target.name: name})


def _of_shape(target: Operand, value: Tensor, declared: Type) -> Tensor:
    """Broadcast a value to the declared shape; raise ShapeError if that does not fit."""
    lead = declared.rank - len(value.shape)
    sizes = zip(value.shape, declared.shape[max(lead, 0) :], strict=False)
    if lead < 0 or any(a not in (1, b) for a, b in sizes):
        raise ShapeError.at_user_line(
            f"{target.called} is {declared} at every point, and this value {value.type}",
            facts=f"the value is {value!r}",
            hint="reshape it, or declare what it is defined as: rc.like(value.type, domain)",
        )
    return reshaping.broadcast_to(value, declared.shape)


def _ranges(
    target: Operand, places: list[Any], value: Tensor
) -> tuple[Tensor, list[Any], list[Expr]]:
    """Rewrite x[lo:hi] = v as x[t] = v where lo <= t < hi, or v[t - lo] if v has an axis for it.

    Return the value, the places with dims for ranges, and the conditions.
    """
    node = target.graph[target.name]
    without = sum(isinstance(e, slice) for e in places) - (len(value.shape) - target.type.rank)
    conditions: list[Expr] = []
    out: list[Any] = []
    for r, e in zip(node.domain, places, strict=True):
        out.append(r.sym if isinstance(e, slice) else e)
        if not isinstance(e, slice):
            continue
        s = range_of(e, r)
        if (symbols(s.lo) | symbols(s.hi)) & set(target.builder.dim_names()):
            _fixed_place(target, e, r)
        inside = [*ex.between(r.sym, s.lo, s.hi)]
        inside += [ex.compare("==", (r.sym - s.lo) % s.step, 0)] if s.step != 1 else []
        conditions += [c for c in inside if not isl.always(c, node.domain)]
        value = _row(target, value, s, r) if without <= 0 else value
        without -= 1
    return value, out, conditions


def _row(target: Operand, value: Tensor, slice_: Slice, extent: Range) -> Tensor:
    """Pick the element of the value's first axis that belongs to each point of a range."""
    if value.shape[0] not in (1, slice_.count):
        raise ShapeError.at_user_line(
            f"{target.name} is defined over {slice_}, which are {slice_.count} points, "
            f"by {value.shape[0]} values",
            facts=f"{target.name} is {target.graph[target.name].type} at every point, "
            f"the value is {value!r}",
            hint="give as many rows as points, or one value for all of them",
        )
    at = 0 if value.shape[0] == 1 else (extent.sym - slice_.lo) // slice_.step
    part = Range(extent.dim, ex.minimum(slice_.hi, extent.hi), slice_.lo)
    ranges = {d.dim: d for d in value.domain} | {extent.dim: part}
    box = target.builder.domain(set(ranges), ranges)
    node = target.builder.emit(indexing.Pick(axis=0, at_=at), (value.ref,), box, "row")
    return value.kind(target.builder, node.ref)


def _edges(extent: Range, expr: Any, have: Domain, box: Domain, where: list[Expr]) -> list[Expr]:
    """The conditions, not implied otherwise, that `expr` is a point of the value.

    x[t+1] = v means x[t] = v[t-1] where t-1 is a point of v.
    """
    edge = next((x for x in have if x.dim == extent.dim), extent)
    inside = ex.between(expr, edge.lo, edge.hi)
    return [c for c in inside if not isl.always(c, box, tuple(where))]


def _fixed_place(target: Operand, expr: Any, extent: Range) -> Expr | int:
    """A place that mentions no dims, as in x[b, i, 0] = ..; raises DomainError for others."""
    if isinstance(expr, slice) or symbols(expr) & set(target.builder.dim_names()):
        raise DomainError.at_user_line(
            f"{target.name} cannot be defined at {written(expr)}",
            facts=f"the place of dim {extent.dim} must be {extent.dim}, {extent.dim}+c, "
            "or free of dims",
            hint=_other_place(target, expr, extent),
        )
    return place_of(expr, extent)


def _other_place(target: Operand, expr: Any, extent: Range) -> str:
    """The hint for a bad place: dims in the right order, or a condition instead."""
    if str(expr) in target.domain.dims:
        return f"the order of its dims is {target.name}[{', '.join(target.domain.dims)}]"
    return f"give a condition: {target.name}[..., {extent.dim} >= 1] = ..."


def _no_other_dims(name: str, domain: Domain, value: Operand) -> None:
    extra = set(value.domain.dims) - set(domain.dims)
    if extra:
        raise DomainError.at_user_line(
            f"{name} is defined by a value that varies with {', '.join(sorted(extra))}",
            facts=f"{name} has the domain {domain}, the value {value.domain}",
            hint="add the dim to its domain, or index the value",
        )
