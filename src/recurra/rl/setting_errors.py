"""Errors in the settings of a training run, in the words of its command.

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
from recurra.support.command_line_text import flag, spelled

if TYPE_CHECKING:
    from recurra.rl.recipe import Recipe

# The range of a number; other counts are at least 1, other numbers at least 0.
LIMITS = {"seed": (0, 2**32 - 1), "gamma": (0.0, 1.0), "gae": (0.0, 1.0)}
LARGE = 10**6  # from here on, an error with the number of a setting means that setting


def expect_sound(settings: Recipe) -> None:
    """Raise RecurraError if a number among the settings is out of range."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        for x in _each(value):
            if isinstance(x, bool) or not isinstance(x, (int, float)):
                continue
            usual = (1, MAX_POINTS) if isinstance(x, int) else (0.0, math.inf)
            least, most = LIMITS.get(f.name, usual)
            if least <= x <= most and math.isfinite(x):
                continue
            too_small = f.name not in LIMITS and not x > most
            limits = f"at least {least}" if too_small else f"from {least} to {most}"
            raise RecurraError(
                f"{flag(f.name)} cannot be {x}",
                facts=f"it is {limits}",
                hint=f"leave it out for {flag(f.name, f.default)}",
            )


def _each(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_named(value: object, what: str, facts: str) -> bool:
    """Tell whether an error names a setting's value: a text, or a number too large for chance."""
    if isinstance(value, str):
        return re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", what) is not None
    large = isinstance(value, int) and value >= LARGE
    return large and re.search(rf"\b{value}\b", f"{what} {facts}") is not None


def _bounds_as_flags(bounds: Mapping[str, str], text: str) -> str:
    """Replace a bound to compile with by its flag, or drop it if the hint has an alternative."""

    def by_flag(match: re.Match[str]) -> str:
        before, bound, n = match.groups()
        meaning = bounds.get(bound, "")
        if meaning.startswith("--"):
            return f"{before or ''}{meaning} {n}"
        return "" if before else match[0]

    return re.sub(r"(, or )?compile with \{(\w+): (\d+)\}", by_flag, text)


def in_flags(settings: Recipe, error: RecurraError) -> RecurraError:
    """Translate an error of the compiler to the words of the command."""
    names = [f.name for f in fields(settings)]
    counted = re.compile(rf"\b(\d+) ({'|'.join(names)})\b")

    def translated(text: str) -> str:
        text = _bounds_as_flags(settings.bounds, text)
        return counted.sub(lambda m: flag(m[2], m[1]), spelled(text, names))

    what, facts, hint = map(translated, (error.what, error.facts, error.hint))
    full = f"{what} {facts} {hint}"
    changed = {f.name: x for f in fields(settings) if (x := getattr(settings, f.name)) != f.default}
    given = [
        flag(name, value)
        for name, value in changed.items()
        if any(_is_named(x, what, facts) for x in _each(value)) and flag(name) not in what
    ]
    bounds = [
        f"{bound} is {meaning}"
        for bound, meaning in settings.bounds.items()
        if re.search(rf"\b{bound}\b", full)
    ]
    more = ([f"given as {', '.join(given)}"] if given else []) + bounds
    facts = "\n  ".join(filter(None, [facts, "; ".join(more)]))
    return type(error)(what, facts=facts, hint=hint, loc=error.loc)
