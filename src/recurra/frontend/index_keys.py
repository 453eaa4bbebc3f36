"""Conversion of the keys in brackets to points and ranges of a dim."""

from __future__ import annotations

from typing import Any

from recurra.analysis.affine import quasi_affine
from recurra.errors import DomainError, here
from recurra.frontend.index_arguments import condition, is_condition, unwrap
from recurra.ir import expr as ex
from recurra.ir.expr import Expr
from recurra.ir.graph import Index, Slice
from recurra.ir.types import Range


def index_of(key: object, extent: Range) -> Index:
    return range_of(key, extent) if isinstance(key, slice) else place_of(key, extent)


def range_of(key: slice, extent: Range) -> Slice:
    lo = extent.lo if key.start is None else place_of(key.start, extent)
    hi = extent.hi if key.stop is None else place_of(key.stop, extent)
    step: Any = 1 if key.step is None else unwrap(key.step)
    s = Slice(lo, hi, step)
    quasi_affine("the range", s, here())
    return s


def place_of(key: object, extent: Range) -> Expr | int:
    """The quasi-affine position that a key denotes; a negative constant counts from the end."""
    e = unwrap(key)
    if type(e) is not int and not (
        isinstance(e, Expr) and not any(is_condition(x) for x in ex.walk(e))
    ):
        raise DomainError.at_user_line(
            f"{key!r} is no index for dim {extent.dim}",
            facts="indices are quasi-affine: dims, bounds, constants, + - * // %, min, max, ranges",
            hint=_hint_for_key(key, extent),
        )
    quasi_affine("the index", e, here())
    return extent.hi + e if isinstance(e, int) and e < 0 else e


def _hint_for_key(key: object, extent: Range) -> str:
    """The hint for a key that is no index expression, such as positions given by data."""
    if key is ...:
        return f"write {extent.dim} for every point of it at itself"
    if key is None:
        return "a new axis is one of the value: x.reshape(1, *x.shape)"
    if getattr(key, "dtype", None) == "bool" or condition(key) is not None:
        return "nothing is left out, but another value chosen: rc.where(x > 0.0, x, 0.0)"
    name = getattr(key, "called", None)
    if name in (extent.dim, str(extent.hi)):
        before = "a dim" if name == extent.dim else f"the bound of {extent.dim}"
        return f"call that tensor otherwise: {name} was {before} until then"
    return f"positions by data are taken of a range: x[0:{extent.hi}].take(i, axis=0)"


def written(expr: object) -> str:
    if not isinstance(expr, slice):
        return "..." if expr is ... else str(expr)
    return ":".join("" if p is None else str(unwrap(p)) for p in (expr.start, expr.stop))
