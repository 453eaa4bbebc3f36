"""The table of operators: a row stands where one is defined, with its names elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from recurra.analysis.arguments import F, WrongCall, expecting
from recurra.errors import here


@dataclass(frozen=True)
class Operator:
    """An operator: how it is written here, what it is called elsewhere, and what it does."""

    ours: str  # a line that works, of tensors x and y, integers i, and a dim t
    numpy: str
    torch: str
    says: str
    module: str  # where it is defined

    @property
    def key(self) -> str:
        """The name without arguments: x.sum, x + y."""
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


def operator(
    ours: str, numpy: str = "", torch: str = "", positions: str | None = None
) -> Callable[[F], F]:
    """Enter a function into the table; its arguments may be given by their names elsewhere.

    Args:
        positions: how the second result is written that torch's function gives with `dim=`, "" if
            there is none here; None where torch gives one result, too.
    """

    def enter(function: F) -> F:
        row = Operator(
            ours, numpy, torch, (function.__doc__ or "").strip().split("\n")[0], function.__module__
        )
        assert row.key not in OPERATORS, f"two operators are written {row.key}"
        OPERATORS[row.key] = row
        is_method = not ours.startswith("rc.")
        named = _by_any_name(
            function, expecting(function, row.key, f"write {ours}", is_method=is_method)
        )
        return named if positions is None else _one_result(named, row, positions)

    return enter


def _one_result(function: F, row: Operator, positions: str) -> F:
    """Refuse `dim=` where torch gives a pair of it: its first element would be another one."""

    @wraps(function)
    def single(*args: object, **given: object) -> object:
        if "dim" in given:
            more = ", ".join(f"{ELSEWHERE.get(k, k)}={v!r}" for k, v in given.items())
            values = f"{row.key}({more})"
            raise WrongCall(
                f"{row.key} with dim= is a pair in torch",
                facts=f"torch.{function.__name__} gives values and positions, "
                f"{row.key} the values alone",
                hint=f"write {values} for the values"
                + (f", {positions}(axis={given['dim']!r}) for the positions" if positions else ""),
                loc=here(),
            )
        return function(*args, **given)

    return single  # pyright: ignore[reportReturnType]


def _by_any_name(function: F, call: F) -> F:
    """`call`, which is `function` as it is called, with the words of others, too."""
    code = function.__code__
    takes = set(code.co_varnames[: code.co_argcount])
    words = {other: own for other, own in ELSEWHERE.items() if own in takes and other not in takes}
    if not words:
        return call

    @wraps(function)
    def named(*args: object, **given: object) -> object:
        own = dict(given)
        for other in given:  # the second of two that mean the same keeps its word, and is refused
            if words.get(other, other) not in own:
                own[words[other]] = own.pop(other)
        return call(*args, **own)

    return named  # pyright: ignore[reportReturnType]
