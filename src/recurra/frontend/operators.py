"""The table of operators: a row stands where one is defined, with its names elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from types import FunctionType
from typing import Any, TypeVar

from recurra.errors import RecurraError, here

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operator:
    """How one writes it here, what it is called elsewhere, and what it does."""

    ours: str  # a line that works, of tensors x and y, integers i, and a dim t
    numpy: str
    torch: str
    says: str
    module: str  # where it is defined

    @property
    def key(self) -> str:
        """Its name, without its arguments: x.sum, x + y."""
        return self.ours.split("(")[0]


OPERATORS: dict[str, Operator] = {}
ELSEWHERE = {  # arguments by their names in torch, or in older NumPy
    "dim": "axis",
    "dims": "axis",
    "keepdim": "keepdims",
    "diagonal": "k",
    "shifts": "shift",
    "ddof": "correction",
    "min": "lo",
    "max": "hi",
    "a_min": "lo",
    "a_max": "hi",
}


class WrongCall(RecurraError, TypeError):
    """Arguments that a function does not have; a TypeError too, as Python has it."""


def operator(
    ours: str, numpy: str = "", torch: str = "", positions: str | None = None
) -> Callable[[F], F]:
    """Enter a function into the table; its arguments may be given by their names elsewhere.

    Args:
        positions: how the second result is written that torch's function gives with `dim=`, "" if
            there is none here; None where torch gives one result, too.
    """

    def enter(f: F) -> F:
        row = Operator(ours, numpy, torch, (f.__doc__ or "").strip().split("\n")[0], f.__module__)
        assert row.key not in OPERATORS, f"two operators are written {row.key}"
        OPERATORS[row.key] = row
        named = expecting(_by_any_name(f), row.key, f"write {ours}")
        return named if positions is None else _one_result(named, row, positions)

    return enter


def expecting(f: F, name: str, hint: str | Callable[[str], str]) -> F:
    """Refuse a call whose arguments do not fit as ours, with a line that does.

    Args:
        hint: that line, or what makes it of the arguments as they were written.
    """

    @wraps(f)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return f(*args, **given)
        except TypeError as error:
            try:
                signature(f).bind(*args, **given)
            except TypeError as misfit:
                skip = int(name.startswith("x.") or next(iter(signature(f).parameters)) == "self")
                written = [_shown(x) for x in args[skip:]]
                written += [f"{k}={_shown(v)}" for k, v in given.items()]
                raise WrongCall(
                    f"{name}({', '.join(written)}) does not fit: {misfit}",
                    facts=f"its arguments are {_arguments(f, skip)}",
                    hint=hint if isinstance(hint, str) else hint(", ".join(written)),
                    loc=here(),
                ) from None
            raise error

    return call  # pyright: ignore[reportReturnType]


def _one_result(f: F, row: Operator, positions: str) -> F:
    """Refuse `dim=` where torch gives a pair of it: its first element would be another one."""

    @wraps(f)
    def single(*args: Any, **given: Any) -> Any:
        if "dim" in given:
            more = ", ".join(f"{ELSEWHERE.get(k, k)}={v!r}" for k, v in given.items())
            values = f"{row.key}({more})"
            raise WrongCall(
                f"{row.key} with dim= is a pair in torch",
                facts=f"torch.{f.__name__} gives values and positions, {row.key} the values alone",
                hint=f"write {values} for the values"
                + (f", {positions}(axis={given['dim']!r}) for the positions" if positions else ""),
                loc=here(),
            )
        return f(*args, **given)

    return single  # pyright: ignore[reportReturnType]


def _arguments(function: Callable[..., Any], skip: int) -> str:
    """The arguments of a function, without their types."""
    own = list(signature(function).parameters.values())[skip:]
    return ", ".join(map(_argument, own)) or "none"


def _argument(parameter: Parameter) -> str:
    plain = parameter.replace(annotation=Parameter.empty, default=Parameter.empty)
    has_default = parameter.default is not Parameter.empty
    return f"{plain}={_shown(parameter.default)}" if has_default else str(plain)


def _shown(x: Any) -> str:
    """An argument as text: a function by its name."""
    return x.__name__ if isinstance(x, FunctionType) else repr(x)


def _by_any_name(f: F) -> F:
    code = f.__code__
    takes = set(code.co_varnames[: code.co_argcount])
    words = {other: own for other, own in ELSEWHERE.items() if own in takes and other not in takes}
    if not words:
        return f

    @wraps(f)
    def named(*args: Any, **given: Any) -> Any:
        own = [words.get(k, k) for k in given]
        if len(set(own)) < len(own):
            raise TypeError(f"{f.__name__}() got {', '.join(given)}, of which two mean the same")
        return f(*args, **dict(zip(own, given.values(), strict=True)))

    return named  # pyright: ignore[reportReturnType]
