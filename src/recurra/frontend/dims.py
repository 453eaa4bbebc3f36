"""Index: dims and bounds with symbolic arithmetic, which become tensors in other arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any, TypeGuard, overload

import numpy as np

from recurra.errors import DomainError
from recurra.frontend.index_arguments import BareIndex, condition, unwrap
from recurra.frontend.refused_conversions import operator_of
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir import expr as ex
from recurra.ir.expr import Expr

Join = Callable[[RecurrentTensor, RecurrentTensor], RecurrentTensor]


class Index(BareIndex):
    """An index expression. Quasi-affine arithmetic stays symbolic; anything else gives a tensor."""

    __slots__ = ()

    def _arithmetic(self, other: object, fold: Callable[[Any, Any], Any]) -> Any:
        """Fold the expression with an integer or an index; with anything else, a tensor of it."""
        if not _is_int(other):
            return self._read(other, fold)
        number = unwrap(other)
        if isinstance(number, int) and abs(number) >= 2**63:
            raise DomainError.at_user_line(
                f"the index has the number {number}",
                facts="indices are numbers of 32 bits",
                hint=f'compute with a number: rc.value({self}, "f64") and {float(number)}',
            )
        return Index(fold(self.expr, number))

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *operands: object, **_: object
    ) -> object:
        """Apply a NumPy operator, with NumPy's scalars as Python numbers and arrays as tensors."""
        return operator_of(ufunc, method)(*map(_of_numpy, operands))

    @overload
    def __add__(self, other: Index | int) -> Index: ...
    @overload
    def __add__(self, other: object) -> Index | RecurrentTensor: ...
    def __add__(self, other: object) -> Index | RecurrentTensor:
        return self._arithmetic(other, operator.add)

    @overload
    def __sub__(self, other: Index | int) -> Index: ...
    @overload
    def __sub__(self, other: object) -> Index | RecurrentTensor: ...
    def __sub__(self, other: object) -> Index | RecurrentTensor:
        return self._arithmetic(other, operator.sub)

    @overload
    def __rsub__(self, other: Index | int) -> Index: ...
    @overload
    def __rsub__(self, other: object) -> Index | RecurrentTensor: ...
    def __rsub__(self, other: object) -> Index | RecurrentTensor:
        return self._arithmetic(other, lambda a, b: b - a)

    @overload
    def __mul__(self, other: Index | int) -> Index: ...
    @overload
    def __mul__(self, other: object) -> Index | RecurrentTensor: ...
    def __mul__(self, other: object) -> Index | RecurrentTensor:
        return self._arithmetic(other, operator.mul)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Index:
        return Index(-self.expr)

    @overload
    def __floordiv__(self, other: int) -> Index: ...
    @overload
    def __floordiv__(self, other: object) -> Index | RecurrentTensor: ...
    def __floordiv__(self, other: object) -> Index | RecurrentTensor:
        return self._divide(other, operator.floordiv)

    @overload
    def __mod__(self, other: int) -> Index: ...
    @overload
    def __mod__(self, other: object) -> Index | RecurrentTensor: ...
    def __mod__(self, other: object) -> Index | RecurrentTensor:
        return self._divide(other, operator.mod)

    def _divide(self, other: object, divide: Callable[[Any, Any], Any]) -> Index | RecurrentTensor:
        n = unwrap(other)
        if type(n) is int:
            if n <= 0:
                raise DomainError.at_user_line(
                    f"{self} is divided by {n}",
                    facts="the right side of // and % is positive",
                    hint="read the dim as a number: rc.value(...)",
                )
            return Index(divide(self.expr, n))
        return self._read(other, divide, whole="i32" if _is_int(other) else "f32")

    def __truediv__(self, other: object) -> RecurrentTensor:
        return self._read(other, operator.truediv)

    def __rtruediv__(self, other: object) -> RecurrentTensor:
        return self._read(other, lambda a, b: b / a)

    def __pow__(self, other: object) -> RecurrentTensor:
        return self._read(other, operator.pow)

    def __rpow__(self, other: object) -> RecurrentTensor:
        return self._read(other, lambda a, b: b**a)

    def _read(self, other: object, join: Join, whole: str = "f32") -> RecurrentTensor:
        if not isinstance(other, RecurrentTensor):
            return join(as_tensor(self, whole), as_tensor(other, whole))
        return join(as_tensor(self, "i32" if other.dtype == "bool" else other.dtype), other)

    def __eq__(self, other: object) -> Any:
        return self._compare("==", other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compare("!=", other, operator.ne)

    def __lt__(self, other: Index | int) -> Index:
        return self._compare("<", other, operator.lt)

    def __le__(self, other: Index | int) -> Index:
        return self._compare("<=", other, operator.le)

    def __gt__(self, other: Index | int) -> Index:
        return self._compare(">", other, operator.gt)

    def __ge__(self, other: Index | int) -> Index:
        return self._compare(">=", other, operator.ge)

    def _compare(self, op: str, other: object, read: Join) -> Any:
        """A symbolic condition for integers; for other operands a Boolean tensor."""
        if _is_int(other):
            return Index(ex.compare(op, self.expr, unwrap(other)))
        named = op in ("==", "!=") and not isinstance(other, (Number, np.ndarray))
        if named or isinstance(other, RecurrentTensor):
            return NotImplemented
        return self._read(other, read)

    def _joined(self, other: object, join: Callable[[Expr, Expr], Expr]) -> Index:
        left, right = condition(self), condition(other)
        return NotImplemented if left is None or right is None else Index(join(left, right))

    def __and__(self, other: Index | bool) -> Index:
        return self._joined(other, ex.all_of)

    def __or__(self, other: Index | bool) -> Index:
        return self._joined(other, ex.any_of)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Index:
        own = condition(self)
        if own is None:
            raise DomainError.at_user_line(
                f"~ of {self}, which is no condition",
                facts="~ says where a condition does not hold",
                hint=f"compare it first: ~({self} == 0)",
            )
        return Index(ex.negate(own))

    def __hash__(self) -> int:
        return hash(self.expr)

    def __abs__(self) -> RecurrentTensor:
        return self._read(0, lambda a, _: a.abs())


Place = Index | Expr | str  # a dim, or its name
Dims = Sequence[Place]
Steps = Sequence[Place | tuple[Place, ...]]  # dims in a tuple are nested counters


def _is_int(other: object) -> TypeGuard[Index | int]:
    return isinstance(other, (Index, np.integer)) or type(other) is int


def _of_numpy(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    return as_tensor(value) if isinstance(value, np.ndarray) else value


def wrap(expr: Expr | int) -> Index | int:
    return Index(expr) if isinstance(expr, Expr) else expr


@overload
def minimum(*args: int) -> int: ...
@overload
def minimum(*args: Index | int) -> Index | int: ...
def minimum(*args: Index | int) -> Index | int:
    """The minimum of index expressions: `r[t:rc.min(t + 5, T)]`."""
    _only_indices("min", args)
    return _like(args, ex.minimum(*map(unwrap, args)))


@overload
def maximum(*args: int) -> int: ...
@overload
def maximum(*args: Index | int) -> Index | int: ...
def maximum(*args: Index | int) -> Index | int:
    """The maximum of index expressions: `k[rc.max(t - w, 0):t + 1]`."""
    _only_indices("max", args)
    return _like(args, ex.maximum(*map(unwrap, args)))


def _like(args: tuple[Index | int, ...], expr: Expr | int) -> Index | int:
    """Wrap an expression as an index if it is symbolic or one of the operands is an index."""
    return (
        Index(expr) if isinstance(expr, Expr) or any(isinstance(x, Index) for x in args) else expr
    )


def _only_indices(name: str, args: tuple[object, ...]) -> None:
    for x in args:
        if not _is_int(x):
            raise DomainError.at_user_line(
                f"rc.{name} of {x!r}",
                facts="it takes index expressions, and is one",
                hint=f"for tensors there are rc.{name}imum(a, b) and x.{name}(axis)",
            )
