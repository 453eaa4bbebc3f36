"""Sizes of layers: arguments that are whole numbers, refused where a module is made of others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import TypeVar

import numpy as np

from recurra.errors import ShapeError, here

F = TypeVar("F", bound=Callable[..., object])
_ONE, _SEVERAL = r"int", r"(?:Sequence\[int\]|tuple\[int, (?:int|\.\.\.)\])"
_SIZES = re.compile(rf"(?:{_ONE}|{_SEVERAL})(?: \| (?:{_ONE}|{_SEVERAL}))*")


def sized(init: F, name: str, rewritten: Callable[[str], str]) -> F:
    """A constructor that takes whole numbers of at least 1 where its annotations say `int`.

    One that may be 0 has that as its default. `rewritten` is a hint made of arguments as text.
    """
    sizes = [p for p in signature(init).parameters.values() if _SIZES.fullmatch(str(p.annotation))]

    @wraps(init)
    def checked(*args: object, **given: object) -> None:
        bound = signature(init).bind(*args, **given)
        for p in sizes:
            value, least = bound.arguments.get(p.name, p.default), int(p.default != 0)
            several = re.search(_SEVERAL, p.annotation)
            if (several and _are_sizes(value, least)) or (
                "int" in p.annotation.split(" | ") and _is_size(value, least)
            ):
                continue
            wanted = "a list of whole numbers" if several else "a whole number"
            raise ShapeError(
                f"{name} cannot have {p.name}={value!r}",
                facts=f"it is {wanted}, of at least {least}, known before the bounds are",
                hint=_listed(args[1:], p, rewritten) if several else f"{p.name}={_near(value)}",
                loc=here(),
            )
        init(*args, **given)

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


def _listed(args: Sequence[object], parameter: Parameter, rewritten: Callable[[str], str]) -> str:
    """The call with the whole numbers that it begins with in brackets, or with some."""
    count = next((k for k, x in enumerate(args) if not _is_size(x, 1)), len(args))
    if count < 2:
        return rewritten("[4, 32, 2]")
    return rewritten(", ".join([repr(list(args[:count])), *map(repr, args[count:])]))
