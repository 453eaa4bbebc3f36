"""Mistakes in the settings of a training run, told in the words of its command.

the bound B cannot be 0   →   --rows cannot be 0
hint: placement='greedy'  →   hint: --placement greedy
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from recurra.errors import RecurraError

if TYPE_CHECKING:
    from recurra.rl.recipe import Recipe

# What numbers may be, where that is not at least 1 for counts, and at least 0 for others.
LIMITS = {"seed": (0, 2**32 - 1), "gamma": (0.0, 1.0), "gae": (0.0, 1.0)}
MAX_COUNT = 2**31 - 1  # points of a dim, and elements of an axis, are counted in 32 bits


def flag(name: str, value: Any = None) -> str:
    """A setting as the command spells it."""
    spelled = "--" + name.replace("_", "-")
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return " ".join([spelled, *map(str, values)])


def expect_sound(settings: Recipe) -> None:
    """Raise RecurraError if a number among the settings can mean nothing."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, bool) or not isinstance(x, (int, float)):
                continue
            usual = (1, MAX_COUNT) if isinstance(x, int) else (0.0, math.inf)
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


def in_flags(settings: Recipe, error: RecurraError) -> RecurraError:
    """A mistake that the compiler tells in its words, in those of the command."""
    names = "|".join(f.name for f in fields(settings))
    spelled = re.compile(rf"\b({names})=('[^']*'|[\w.+-]+)")

    def said(text: str) -> str:
        return spelled.sub(lambda m: flag(m[1], m[2].strip("'")), text)

    what, facts, hint = map(said, (error.what, error.facts, error.hint))
    given = [
        flag(f.name, value)
        for f in fields(settings)
        if isinstance(value := getattr(settings, f.name), str) and value != f.default
        if re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", what) and flag(f.name) not in what
    ]
    whole = f"{what} {facts} {hint}"
    bounds = [
        f"{bound} is {meaning}"
        for bound, meaning in settings.bounds.items()
        if re.search(rf"\b{bound}\b", whole)
    ]
    more = ([f"given as {', '.join(given)}"] if given else []) + bounds
    facts = "\n  ".join(filter(None, [facts, "; ".join(more)]))
    return type(error)(what, facts=facts, hint=hint, loc=error.loc)
