"""Checks of the sizes of layers, constructor arguments that must be positive integers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import TypeVar

import numpy as np

from recurra.errors import ShapeError

F = TypeVar("F", bound=Callable[..., object])
_ONE, _SEVERAL = r"int", r"(?:Sequence\[int\]|tuple\[int, (?:int|\.\.\.)\])"
_SIZES = re.compile(rf"(?:{_ONE}|{_SEVERAL})(?: \| (?:{_ONE}|{_SEVERAL}))*")


def sized(init: F, name: str, rewritten: Callable[[str], str]) -> F:
    """Wrap a constructor to raise ShapeError unless arguments annotated `int` are at least 1.

    An argument whose default is 0 may be 0. `rewritten` returns a hint for arguments as text.
    """
    sizes = [p for p in signature(init).parameters.values() if _SIZES.fullmatch(str(p.annotation))]

    @wraps(init)
    def checked(*args: object, **kwargs: object) -> None:
        bound = signature(init).bind(*args, **kwargs)
        for p in sizes:
            value, least = bound.arguments.get(p.name, p.default), int(p.default != 0)
            several = re.search(_SEVERAL, p.annotation)
            if (several and _are_sizes(value, least)) or (
                "int" in p.annotation.split(" | ") and _is_size(value, least)
            ):
                continue
            wanted = "a list of whole numbers" if several else "a whole number"
            raise ShapeError.at_user_line(
                f"{name} cannot have {p.name}={value!r}",
                facts=f"it is {wanted}, of at least {least}, known before the bounds are",
                hint=_as_list(args[1:], rewritten) if several else f"{p.name}={_near(value)}",
            )
        init(*args, **kwargs)

    return checked if sizes else init  # pyright: ignore[reportReturnType]


def _is_size(value: object, least: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return int(value) >= least


def _are_sizes(value: object, least: int) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(_is_size(x, least) for x in value)


def _near(value: object) -> int:
    return max(1, round(value)) if isinstance(value, int | float) else 32


def _as_list(args: Sequence[object], rewritten: Callable[[str], str]) -> str:
    """The hint to write the leading sizes of a call as a list, or an example of one."""
    count = next((k for k, x in enumerate(args) if not _is_size(x, 1)), len(args))
    if count < 2:
        return rewritten("[4, 32, 2]")
    return rewritten(", ".join([repr(list(args[:count])), *map(repr, args[count:])]))
