"""Mistakes in the settings of a training run, told in the words of its command.

the bound B cannot be 0   →   --rows cannot be 0
hint: placement='greedy'  →   hint: --placement greedy
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from recurra.errors import RecurraError
from recurra.ir.dims import MAX_POINTS
from recurra.support.flags import flag, spelled

if TYPE_CHECKING:
    from recurra.rl.recipe import Recipe

# What numbers may be, where that is not at least 1 for counts, and at least 0 for others.
LIMITS = {"seed": (0, 2**32 - 1), "gamma": (0.0, 1.0), "gae": (0.0, 1.0)}
LARGE = 10**6  # from here on a mistake that says a setting's number means that setting


def expect_sound(settings: Recipe) -> None:
    """Raise RecurraError if a number among the settings can mean nothing."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        for x in _each(value):
            if isinstance(x, bool) or not isinstance(x, (int, float)):
                continue
            usual = (1, MAX_POINTS) if isinstance(x, int) else (0.0, math.inf)
            least, most = LIMITS.get(f.name, usual)
            if least <= x <= most and math.isfinite(x):
                continue
            near = f.name not in LIMITS and not x > most  # only its lower end matters
            fits = f"at least {least}" if near else f"from {least} to {most}"
            raise RecurraError(
                f"{flag(f.name)} cannot be {x}",
                facts=f"it is {fits}",
                hint=f"leave it out for {flag(f.name, f.default)}",
            )


def _each(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_said(value: object, what: str, facts: str) -> bool:
    """Tell whether a mistake names a setting's value: a text, or a number too large for chance."""
    if isinstance(value, str):
        return re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", what) is not None
    large = isinstance(value, int) and value >= LARGE
    return large and re.search(rf"\b{value}\b", f"{what} {facts}") is not None


def _bounds_said(bounds: Mapping[str, str], text: str) -> str:
    """Say which flag sets the bound to compile with, or leave it out if something else helps."""

    def by_flag(found: re.Match[str]) -> str:
        before, bound, n = found.groups()
        meaning = bounds.get(bound, "")
        if meaning.startswith("--"):
            return f"{before or ''}{meaning} {n}"
        return "" if before else found[0]

    return re.sub(r"(, or )?compile with \{(\w+): (\d+)\}", by_flag, text)


def in_flags(settings: Recipe, error: RecurraError) -> RecurraError:
    """A mistake that the compiler tells in its words, in those of the command."""
    names = [f.name for f in fields(settings)]
    counted = re.compile(rf"\b(\d+) ({'|'.join(names)})\b")

    def said(text: str) -> str:
        text = _bounds_said(settings.bounds, text)
        return counted.sub(lambda m: flag(m[2], m[1]), spelled(text, names))

    what, facts, hint = map(said, (error.what, error.facts, error.hint))
    whole = f"{what} {facts} {hint}"
    changed = {f.name: x for f in fields(settings) if (x := getattr(settings, f.name)) != f.default}
    given = [
        flag(name, value)
        for name, value in changed.items()
        if any(_is_said(x, what, facts) for x in _each(value)) and flag(name) not in what
    ]
    bounds = [
        f"{bound} is {meaning}"
        for bound, meaning in settings.bounds.items()
        if re.search(rf"\b{bound}\b", whole)
    ]
    more = ([f"given as {', '.join(given)}"] if given else []) + bounds
    facts = "\n  ".join(filter(None, [facts, "; ".join(more)]))
    return type(error)(what, facts=facts, hint=hint, loc=error.loc)
