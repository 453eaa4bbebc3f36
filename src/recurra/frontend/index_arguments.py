"""Index expressions without arithmetic, as the methods of tensors take them."""

from __future__ import annotations

from typing import NoReturn, TypeGuard, overload

import numpy as np

from recurra.errors import DomainError, NoSuchName
from recurra.frontend.refused_conversions import Opaque
from recurra.ir import expr as ex
from recurra.ir.expr import Expr


class BareIndex(Opaque):
    """An index expression without arithmetic; users hold its subclass `Index`.

    Expressions that fold to a constant stay indices: `(i % n == 0) & ~c` also works for n = 1, when
    it no longer depends on i. Such an index converts to a number or a truth value of Python.
    """

    __slots__ = ("expr",)

    def __init__(self, expr: Expr | int):
        self.expr = expr

    def __repr__(self) -> str:
        return str(self.expr)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or name == "expr":  # Python asks for these
            raise AttributeError(f"an index has no attribute {name!r}")
        raise NoSuchName.at_user_line(
            f"the index {self} has no {name!r}",
            facts="dims and bounds are counted; a number that is computed with is a tensor",
            hint=f"write rc.value({self}) for that tensor",
        )

    @property
    def constant(self) -> int | bool | None:
        """The number or truth value to which the expression folded, or None."""
        if isinstance(self.expr, int):
            return self.expr
        return self.expr == ex.TRUE if self.expr in (ex.TRUE, ex.FALSE) else None

    def __index__(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.expr if isinstance(self.expr, int) else super().__index__()

    def __int__(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.expr if isinstance(self.expr, int) else super().__int__()

    def __float__(self) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        return float(self.expr) if isinstance(self.expr, int) else super().__float__()

    def __iter__(self) -> NoReturn:
        raise DomainError.at_user_line(
            f"{self} cannot be counted through while the program is written",
            facts="it stands for every point of its dims at once",
            hint="a loop over a dim is an equation over it: x[t + 1] = f(x[t])",
        )

    def __getitem__(self, _: object) -> NoReturn:
        raise DomainError.at_user_line(
            f"{self} has no elements",
            facts="it stands for every point of its dims at once",
            hint="tensors are read at points: x[t + 1], x[3], x[0:T]",
        )

    def __len__(self) -> NoReturn:
        raise DomainError.at_user_line(
            f"{self} has no length",
            facts="it stands for every point of its dims, and for bounds that come with compile",
            hint="the length of a dim is its bound: with ctx as ((t, T),) it is T",
        )

    def __bool__(self) -> bool:
        if self.constant is not None:
            return bool(self.constant)
        raise DomainError.at_user_line(
            f"{self} has no truth value while the program is written",
            facts="it stands for every point of its dims at once",
            hint="use it as a condition: x[cond] = ..., rc.where(cond, a, b); join by & | ~; "
            "min and max of indices are rc.min(a, b), rc.max(a, b)",
        )


Size = int | BareIndex | Expr  # the size of an axis: a number or an expression of bounds


def wrap(expr: Expr | int) -> BareIndex | int:
    return BareIndex(expr) if isinstance(expr, Expr) else expr


@overload
def unwrap(expr: Size) -> Expr | int: ...
@overload
def unwrap(expr: object) -> object: ...
def unwrap(expr: object) -> object:
    """The expression of an index, a Python int for a NumPy integer, and anything else as it is."""
    if isinstance(expr, np.integer):
        return int(expr)
    return expr.expr if isinstance(expr, BareIndex) else expr


def is_condition(expr: object) -> TypeGuard[ex.Cmp | ex.Logic]:
    return isinstance(expr, (ex.Cmp, ex.Logic))


def condition(x: object) -> Expr | None:
    """The condition that `x` states, or None: `i % n == 0`, or Python's own `n == 1`."""
    if isinstance(x, (bool, np.bool_)):
        return ex.TRUE if x else ex.FALSE
    e = unwrap(x)
    return e if is_condition(e) else None
