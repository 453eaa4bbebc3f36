"""Refuse indices and conditions that are not quasi-affine, since isl cannot invert them exactly."""

from __future__ import annotations

from typing import cast

from recurra.errors import DomainError, Loc
from recurra.ir.expr import FloorDiv, Modulo, Product, walk
from recurra.ir.graph import Index, Slice


def quasi_affine(what: str, index: Index, loc: Loc | None) -> None:
    """Raise DomainError for products of dims, and for divisors or steps that are no constants."""
    if isinstance(index, Slice):
        if type(index.step) is not int or index.step < 1:
            raise step_error(index, loc)
        quasi_affine(what, index.lo, loc)
        quasi_affine(what, index.hi, loc)
        return
    for x in walk(index):
        if isinstance(x, Product):
            raise product(what, x, loc)
        if isinstance(x, (FloorDiv, Modulo)) and (type(x.n) is not int or x.n < 1):
            raise divisor(what, x, loc)


def product(what: str, prod: Product, loc: Loc | None) -> DomainError:
    """The error for a product of two symbols in an expression that must be quasi-affine."""
    return DomainError(
        f"{what} multiplies two unknowns: {prod}",
        facts="dims and bounds are added, compared, and multiplied or divided by constants; "
        f"{prod} is not a constant times a dim",
        hint="use a constant for one factor, or choose by data: x.take(...), rc.where(...)",
        loc=loc,
    )


def divisor(what: str, expr: FloorDiv | Modulo, loc: Loc | None) -> DomainError:
    """The error for // or % by anything but a positive constant."""
    sign = "//" if isinstance(expr, FloorDiv) else "%"
    return DomainError(
        f"{what} is divided by {expr.n}: {expr}",
        facts=f"the right side of {sign} is a positive constant: reads are inverted exactly",
        hint="use a constant, or read the dim as a number: rc.value(...)",
        loc=loc,
    )


def step_error(slice_: Slice, loc: Loc | None) -> DomainError:
    """The error for a range whose step is no positive constant."""
    step = cast(object, slice_.step)  # the user may have written anything
    return DomainError(
        f"the range {slice_.lo}:{slice_.hi} is read in steps of {step}",
        facts="the step of a range is a constant of at least 1, or -1",
        hint="write x[::-1] for the points in the other order, x[0:T:2] for every other one"
        if not isinstance(step, int) or step == 0
        else f"write x[0:T:{-step}].flip() for one of {-step}, the last one first",
        loc=loc,
    )
