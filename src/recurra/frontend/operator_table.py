"""The table of operators; each definition adds its row, with the names in NumPy and torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from recurra.analysis.argument_checks import F, WrongCall, check_arguments


@dataclass(frozen=True)
class Operator:
    """A row of the table: the notation here, the names in NumPy and torch, and a description."""

    ours: str  # a line that works, of tensors x and y, integers i, and a dim t
    numpy: str
    torch: str
    says: str  # the first line of its docstring
    module: str  # the module that defines it

    @property
    def key(self) -> str:
        """The name without arguments: x.sum, x + y."""
        return self.ours.split("(")[0]


OPERATORS: dict[str, Operator] = {}
ELSEWHERE = {  # names of arguments in torch or older NumPy -> here
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


def operator(
    ours: str, numpy: str = "", torch: str = "", positions: str | None = None
) -> Callable[[F], F]:
    """Add a function to the table; callers may use the argument names of other libraries.

    Args:
        positions: the call that gives the second result of torch's function with `dim=`, "" if
            there is none here; None if torch's function has one result, too.
    """

    def enter(function: F) -> F:
        row = Operator(
            ours, numpy, torch, (function.__doc__ or "").strip().split("\n")[0], function.__module__
        )
        assert row.key not in OPERATORS, f"two operators are written {row.key}"
        OPERATORS[row.key] = row
        is_method = not ours.startswith("rc.")
        named = _by_any_name(
            function, check_arguments(function, row.key, f"write {ours}", is_method=is_method)
        )
        return named if positions is None else _one_result(named, row, positions)

    return enter


def _one_result(function: F, row: Operator, positions: str) -> F:
    """Refuse `dim=` where torch returns a pair: `[0]` of the result would mean something else."""

    @wraps(function)
    def single(*args: object, **kwargs: object) -> object:
        if "dim" in kwargs:
            more = ", ".join(f"{ELSEWHERE.get(k, k)}={v!r}" for k, v in kwargs.items())
            values = f"{row.key}({more})"
            raise WrongCall.at_user_line(
                f"{row.key} with dim= is a pair in torch",
                facts=f"torch.{function.__name__} gives values and positions, "
                f"{row.key} the values alone",
                hint=f"write {values} for the values"
                + (f", {positions}(axis={kwargs['dim']!r}) for the positions" if positions else ""),
            )
        return function(*args, **kwargs)

    return single  # pyright: ignore[reportReturnType]


def _by_any_name(function: F, call: F) -> F:
    """Let `call`, the wrapper of `function`, accept the argument names of other libraries."""
    code = function.__code__
    takes = set(code.co_varnames[: code.co_argcount])
    words = {other: own for other, own in ELSEWHERE.items() if own in takes and other not in takes}
    if not words:
        return call

    @wraps(function)
    def named(*args: object, **kwargs: object) -> object:
        own = dict(kwargs)
        for other in kwargs:  # the second of two synonyms keeps its name, and is refused
            if words.get(other, other) not in own:
                own[words[other]] = own.pop(other)
        return call(*args, **own)

    return named  # pyright: ignore[reportReturnType]
