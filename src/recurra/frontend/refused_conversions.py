"""Opaque: dims, bounds and tensors refuse conversion to numbers while a program is written."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from recurra.analysis.argument_checks import names_unpacked
from recurra.errors import DomainError, caller
from recurra.frontend.foreign_names import hint, unknown

# NumPy's name → Python's, since NumPy handles array + tensor first
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


_IN_JAX = (
    "write rc.jax_fn(lambda x: jnp.where(x > 0.0, x, 0.0))(x), of any function in the place; "
    "what docs/operators.md lists is called as x.exp()"
)


class Opaque:
    """A base class that refuses every conversion to a number or an array, with a hint."""

    __slots__ = ()

    def __float__(self) -> NoReturn:
        raise _no_number(
            self, "a number", "write x.exp() for math.exp(x); to look at it: rc.output(x=x)"
        )

    def __format__(self, spec: str) -> str:
        if spec and type(self).__index__ is Opaque.__index__:
            raise _no_number(self, "a number", "write rc.output(x=x), and format what a run gives")
        return format(operator.index(self), spec) if spec else str(self)

    def __int__(self) -> NoReturn:
        raise _no_number(
            self, "a number", 'write x.cast("i32"), or x.floor(); of a dim rc.value(t, "i32")'
        )

    def __index__(self) -> NoReturn:
        raise _no_number(
            self, "an integer", "a loop over a dim is an equation over it: x[t + 1] = f(x[t])"
        )

    def __delitem__(self, _: object) -> NoReturn:
        raise DomainError.at_user_line(
            f"points of {self!r} cannot be deleted",
            facts="an equation gives a value at every point of its domain",
            hint="read the points that are wanted: x[1:T]",
        )

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return operator.floordiv(self, other), operator.mod(self, other)

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return operator.floordiv(other, self), operator.mod(other, self)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise _no_number(self, "an array", "write rc.output(x=x); then ctx.run({T: 3})['x'] is one")


class OpaqueTensor(Opaque):
    """A base class of tensors, which takes NumPy's operators and refuses its other functions."""

    def __len__(self) -> NoReturn:
        raise _no_number(self, "a length", "write x.shape[0]; the length of a dim is its bound")

    def __iter__(self) -> NoReturn:
        names = names_unpacked(caller())
        if names is not None:
            raise DomainError.at_user_line(
                f"one tensor is unpacked to {names} names",
                facts=f"it is {self!r}",
                hint="write x.index(0, axis=0) for an element of an axis, x[t] for a point of a "
                "dim; env.reset gives the observation alone: o[b, i, 0] = env.reset(domain=(b, i))",
            )
        raise DomainError.at_user_line(
            "a recurrent tensor cannot be iterated over while the program is written",
            facts=f"this one is {self!r}",
            hint="write x.index(0, axis=0) for an element of an axis, x[t] for a point of a dim",
        )

    def __bool__(self) -> NoReturn:
        raise DomainError.at_user_line(
            "a recurrent tensor has no truth value while the program is written",
            facts=f"this one is {self!r}",
            hint="write rc.where(x > 0.0, x, 0.0) to choose, rc.maximum(x, 0.0) for the greater, "
            "(x > 0.0) & (x < 1.0) for both",
        )

    if not TYPE_CHECKING:  # a type checker knows the names

        def __str__(self) -> str:
            if _is_of_jax(sys._getframe(1)):  # JAX formats an operand that it is about to refuse
                raise _not_taken_by_jax()
            return repr(self)

        def __getattr__(self, name: str) -> NoReturn:
            if name == "__jax_array__" and not _is_operand(sys._getframe(1)):
                raise _not_taken_by_jax()
            if name.startswith("__"):  # Python and NumPy look these up
                raise AttributeError(name)
            raise unknown("a recurrent tensor", name, dir(type(self)))

    def __array_function__(self, function: Callable[..., object], *_: object) -> NoReturn:
        raise _not_taken(f"np.{function.__name__}")

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., object], *_: object, **__: object
    ) -> NoReturn:
        raise _not_taken(f"torch.{function.__name__}")


def operator_of(ufunc: np.ufunc, method: str) -> Callable[..., object]:
    """The Python operator of a NumPy ufunc. Raises DomainError if there is none."""
    name = _OPERATORS.get(ufunc.__name__)
    if name is None or method != "__call__":
        raise _not_taken(f"np.{ufunc.__name__}")
    return getattr(operator, name)


def _is_operand(frame: FrameType) -> bool:
    """Is the frame an operator of a JAX array, which defers to operands that it does not know?"""
    return frame.f_globals.get("__name__", "").endswith(".array_methods")


def _is_of_jax(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == "jax"


def _not_taken_by_jax() -> DomainError:
    return _not_taken("a function of JAX", _IN_JAX)


def _not_taken(name: str, instead: str = "") -> DomainError:
    """The error for a tensor passed to another library's function, with what to write instead."""
    return DomainError.at_user_line(
        f"{name} does not take recurrent tensors",
        facts="a recurrent tensor has no values while the program is written",
        hint=instead or hint(name),
    )


def _no_number(value: object, what: str, hint: str) -> DomainError:
    return DomainError.at_user_line(
        f"{value!r} is not {what} while the program is written",
        facts="it stands for every point of its dims, and for bounds that come with compile",
        hint=hint,
    )
