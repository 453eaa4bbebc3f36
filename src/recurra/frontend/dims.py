"""Dims and bounds as the user writes them in brackets, with arithmetic; numbers where read."""

from __future__ import annotations

from typing import Any

from recurra.errors import DomainError, here
from recurra.frontend.read import Read
from recurra.frontend.symbolic import Symbolic, condition, unwrap
from recurra.frontend.tensor import as_tensor
from recurra.ir import expr as ex
from recurra.ir.expr import Expr


class Index(Symbolic):
    """An index expression. Quasi-affine arithmetic stays symbolic; all else makes it a tensor."""

    __slots__ = ()

    def _affine(self, other: Any, f: Any) -> Any:
        if isinstance(other, Index) or type(other) is int:
            if type(other) is int and abs(other) >= 2**63:
                raise DomainError(
                    f"the index has the number {other}",
                    facts="indices are numbers of 32 bits",
                    hint=f'compute with a number: rc.value({self}, "f64") and {float(other)}',
                    loc=here(),
                )
            return Index(f(self.expr, unwrap(other)))
        return NotImplemented

    def __add__(self, other: Any) -> Any:
        return (
            self._read(other, lambda a, b: a + b)
            if not _is_int(other)
            else self._affine(other, lambda a, b: a + b)
        )

    def __sub__(self, other: Any) -> Any:
        return (
            self._read(other, lambda a, b: a - b)
            if not _is_int(other)
            else self._affine(other, lambda a, b: a - b)
        )

    def __rsub__(self, other: Any) -> Any:
        if _is_int(other):
            return Index(ex.lin([(unwrap(other), 1), (self.expr, -1)]))
        return self._read(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return (
            self._affine(other, ex.mul) if _is_int(other) else self._read(other, lambda a, b: a * b)
        )

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return Index(-self.expr)

    def __floordiv__(self, other: Any) -> Any:
        return self._divide(other, ex.div, lambda a, b: a // b)

    def __mod__(self, other: Any) -> Any:
        return self._divide(other, ex.mod, lambda a, b: a % b)

    def _divide(self, other: Any, f: Any, divide: Any) -> Any:
        n = unwrap(other)
        if type(n) is int and n <= 0:
            raise DomainError(
                f"{self} is divided by {n}",
                facts="the right side of // and % is positive",
                hint="read the dim as a number: rc.value(...)",
                loc=here(),
            )
        if type(n) is int:
            return Index(f(self.expr, n))
        return self._read(other, divide, whole="i32" if _is_int(other) else "f32")

    def __truediv__(self, other: Any) -> Any:
        return self._read(other, lambda a, b: a / b)

    def __rtruediv__(self, other: Any) -> Any:
        return self._read(other, lambda a, b: b / a)

    def __pow__(self, other: Any) -> Any:
        return self._read(other, lambda a, b: a**b)

    def __rpow__(self, other: Any) -> Any:
        return self._read(other, lambda a, b: b**a)

    def _read(self, other: Any, f: Any, whole: str = "f32") -> Any:
        if not isinstance(other, Read):
            return f(as_tensor(self, whole), as_tensor(other, whole))
        return f(as_tensor(self, "i32" if other.dtype == "bool" else other.dtype), other)

    def __eq__(self, o: object) -> Any:
        return self._compare("==", o)

    def __ne__(self, o: object) -> Any:
        return self._compare("!=", o)

    def __lt__(self, other: Any) -> Any:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(">=", other)

    def _compare(self, op: str, other: Any) -> Any:
        return Index(ex.compare(op, self.expr, unwrap(other))) if _is_int(other) else NotImplemented

    def _joined(self, o: Any, join: Any) -> Any:
        mine, other = condition(self), condition(o)
        return NotImplemented if mine is None or other is None else Index(join(mine, other))

    def __and__(self, other: Any) -> Any:
        return self._joined(other, ex.both)

    def __or__(self, other: Any) -> Any:
        return self._joined(other, ex.either)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Index:
        mine = condition(self)
        if mine is None:
            raise DomainError(
                f"~ of {self}, which is no condition",
                facts="~ says where a condition does not hold",
                hint=f"compare it first: ~({self} == 0)",
                loc=here(),
            )
        return Index(ex.negate(mine))

    def __hash__(self) -> int:
        return hash(self.expr)

    def __abs__(self) -> Any:
        return self._read(0, lambda a, _: a.abs())


def _is_int(other: Any) -> bool:
    return isinstance(other, Symbolic) or type(other) is int


def wrap(expr: Expr | int) -> Any:
    return Index(expr) if isinstance(expr, Expr) else expr


def minimum(*args: Any) -> Any:
    """min of index expressions: `r[t:rc.min(t + 5, T)]`."""
    _only_indices("min", args)
    return _like(args, ex.minimum(*map(unwrap, args)))


def maximum(*args: Any) -> Any:
    """max of index expressions: `k[rc.max(t - w, 0):t + 1]`."""
    _only_indices("max", args)
    return _like(args, ex.maximum(*map(unwrap, args)))


def _like(args: tuple[Any, ...], expr: Expr | int) -> Any:
    """An index if one of the operands is, else a number."""
    return Index(expr) if any(isinstance(x, Index) for x in args) else expr


def _only_indices(name: str, args: tuple[Any, ...]) -> None:
    for x in args:
        if not _is_int(x):
            raise DomainError(
                f"rc.{name} of {x!r}",
                facts="it takes index expressions, and is one",
                hint=f"for tensors there are rc.{name}imum(a, b) and x.{name}(axis)",
                loc=here(),
            )
