"""Opaque: dims, bounds and tensors have no number while a program is written, and say so."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn

from recurra.errors import DomainError, here
from recurra.lang.words import hint, unknown

# NumPy's name → Python's: array + tensor is NumPy's to begin with
_OPERATORS = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "truediv",
    "power": "pow",
    "matmul": "matmul",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
    "logical_and": "and_",
    "logical_or": "or_",
}


class Opaque:
    """What Python and NumPy would turn into a number or an array is refused."""

    __slots__ = ()

    def __float__(self) -> NoReturn:
        raise _no_number(self, "a number", "write it as a method: x.exp(), x.sqrt(); math.* cannot")

    def __int__(self) -> NoReturn:
        raise _no_number(self, "a number", "round a tensor with .floor() or .cast('i32')")

    def __index__(self) -> NoReturn:
        raise _no_number(
            self, "an integer", "a loop over a dim is an equation over it: x[t + 1] = f(x[t])"
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise _no_number(self, "an array", "rc.output(x=x), and look at program.run()['x']")


class OpaqueTensor(Opaque):
    """A tensor: NumPy's operators are its own, NumPy's other functions are refused."""

    def __len__(self) -> NoReturn:
        raise _no_number(self, "a length", "its axes are x.shape, its dims are x.domain")

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):  # Python and NumPy ask for these
                raise AttributeError(name)
            raise unknown("a recurrent tensor", name)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **_: Any) -> Any:
        from recurra.lang.build import as_tensor

        name = _OPERATORS.get(ufunc.__name__)
        if name is None or method != "__call__":
            raise _not_taken(f"np.{ufunc.__name__}")
        return getattr(operator, name)(*map(as_tensor, operands))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise _not_taken(f"np.{function.__name__}")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        raise _not_taken(f"torch.{function.__name__}")


def _not_taken(name: str) -> DomainError:
    """A function of NumPy or torch, and what stands for it here."""
    return DomainError(
        f"{name} does not take recurrent tensors",
        facts="a recurrent tensor has no values while the program is written",
        hint=hint(name),
        loc=here(),
    )


def _no_number(x: Any, what: str, hint: str) -> DomainError:
    return DomainError(
        f"{x!r} is not {what} while the program is written",
        facts="it stands for every point of its dims, and for bounds that come with compile",
        hint=hint,
        loc=here(),
    )
