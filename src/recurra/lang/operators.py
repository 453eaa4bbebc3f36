"""The table of operators: a row stands where one is defined, with its names elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operator:
    """How one writes it here, what it is called elsewhere, and what it does."""

    ours: str
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
}


def operator(ours: str, numpy: str = "", torch: str = "") -> Callable[[F], F]:
    """Enter a function into the table; its arguments may be given by their names elsewhere."""

    def enter(f: F) -> F:
        row = Operator(ours, numpy, torch, (f.__doc__ or "").strip().split("\n")[0], f.__module__)
        assert row.key not in OPERATORS, f"two operators are written {row.key}"
        OPERATORS[row.key] = row
        return _by_any_name(f)

    return enter


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
