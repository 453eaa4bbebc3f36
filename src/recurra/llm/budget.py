"""The memory that a program keeps of the past, against a budget: by how much it is more, what fits.

The stores are those that the compiler derived: `Written.stores`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recurra.errors import PlanError, either
from recurra.runtime.executable import Executable

TRIES = 3  # programs that are written to find a window that fits
StoreRow = Mapping[str, Any]  # what a program says of a store: its name, shape, bytes, ..


def expect_room(
    stores: Sequence[StoreRow],
    budget: int,
    prompt: int,
    steps: int,
    of_window: Callable[[int], Sequence[StoreRow]],
    told: str = "",
) -> None:
    """Raises PlanError where the stores of a program of `steps` positions take more bytes.

    It says by how much, and which window, or how many new tokens after `prompt`, would fit:
    `of_window` gives the stores of the same program with a window in every layer. `told` says what
    bytes the budget is of.
    """
    bytes_ = total(stores)
    if bytes_ <= budget:
        return
    timed = [s for s in stores if longest(s)]
    growing = [s for s in timed if longest(s) >= steps]
    window = _window(timed, stores, budget)
    for _ in range(TRIES):  # a window's program also has stores that this one has not
        if window < 1 or total(rows := of_window(window)) <= budget:
            break
        window = min(window - 1, _window([s for s in rows if longest(s)], rows, budget))
    else:
        window = 0
    new = _positions(stores, growing, budget, steps) - prompt + 1
    narrower = either(f"--attention window:{window}", f"attention='window:{window}'")
    hints = [narrower] if 0 < window < steps else []
    hints += [either(f"--max-new-tokens {new}", f"new={new}")] if new > 0 else []
    enough = -(-bytes_ // 1024)
    most = max(stores, key=lambda s: s["bytes"])
    raise PlanError(
        f"what is kept of {steps} positions takes {bytes_:,} bytes, {bytes_ - budget:,} more than"
        f" {budget:,}{f' {told}' if told else ''}",
        facts=f"{len(growing)} of {len(stores)} stores grow with the text; the largest,"
        f" {most['store']}, has {most['slots']} and {most['bytes']:,} bytes",
        hint=" or ".join(hints)
        or (
            "fewer prompts" if told else either(f"--memory {enough}KiB", f"memory={enough * 1024}")
        ),
    )


def _window(timed: Sequence[StoreRow], stores: Sequence[StoreRow], budget: int) -> int:
    """The widest window of the stores in time, if the others stay as they are."""
    left = budget - sum(s["bytes"] for s in stores if not longest(s))
    firsts = {f"{s['store']}_first" for s in timed}  # a window has none
    each = sum(slot(s) for s in timed if s["store"] not in firsts)
    return Executable.longest_window(left // max(1, each))


def _positions(
    stores: Sequence[StoreRow],
    growing: Sequence[StoreRow],
    budget: int,
    steps: int,
) -> int:
    """Count the positions that fit: growing stores have about a whole number of slots for each."""
    rate = {s["store"]: max(1, round(longest(s) / steps)) for s in growing}
    per_step = sum(rate[s["store"]] * slot(s) for s in growing)
    fixed = total(stores) - per_step * steps
    return (budget - fixed) // per_step if per_step else 0


def total(stores: Sequence[StoreRow]) -> int:
    """Bytes of all of them."""
    return sum(s["bytes"] for s in stores)


def slot(store: StoreRow) -> int:
    """Bytes of one position."""
    found = re.search(r"\bt: \d+ \+ (\d+)", str(store["slots"]))
    return store["bytes"] // (longest(store) + (int(found[1]) if found else 0))


def longest(store: StoreRow) -> int:
    """Slots in time: `l: 4, t: 57` → 57; 0 of what has none."""
    found = re.search(r"\bt: (\d+)", str(store["slots"]))
    return int(found[1]) if found else 0
