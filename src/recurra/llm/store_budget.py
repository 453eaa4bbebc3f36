"""Check the memory of stored keys and values against a budget; errors have settings that fit.

The stores are those that the compiler derived: `DecoderProgram.stores`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recurra.errors import PlanError, either
from recurra.runtime.executable import Executable

TRIES = 3  # programs that are compiled to find a window that fits
StoreRow = Mapping[str, Any]  # the properties of a store: its name, shape, bytes, ..


def expect_room(
    stores: Sequence[StoreRow],
    budget: int,
    prompt: int,
    steps: int,
    of_window: Callable[[int], Sequence[StoreRow]],
    source: str = "",
) -> None:
    """Raise PlanError if the stores of a program of `steps` positions exceed a budget.

    The error has the excess, and a window, or a number of new tokens after `prompt`, that fits.

    Args:
        of_window: the stores of the same program with a window in every layer.
        source: the origin of the budget, for the message.
    """
    bytes_ = total_bytes(stores)
    if bytes_ <= budget:
        return
    timed = [s for s in stores if max_slots(s)]
    growing = [s for s in timed if max_slots(s) >= steps]
    window = _window(timed, stores, budget)
    for _ in range(TRIES):  # a program with windows may have more stores
        if window < 1 or total_bytes(rows := of_window(window)) <= budget:
            break
        window = min(window - 1, _window([s for s in rows if max_slots(s)], rows, budget))
    else:
        window = 0
    new = _positions(stores, growing, budget, steps) - prompt + 1
    narrower = either(f"--attention window:{window}", f"attention='window:{window}'")
    hints = [narrower] if 0 < window < steps else []
    hints += [either(f"--max-new-tokens {new}", f"new={new}")] if new > 0 else []
    largest = max(stores, key=lambda s: s["bytes"])
    kib = -(-bytes_ // 1024)
    fallback = "fewer prompts" if source else either(f"--memory {kib}KiB", f"memory={kib * 1024}")
    raise PlanError(
        f"what is kept of {steps} positions takes {bytes_:,} bytes, {bytes_ - budget:,} more than"
        f" {budget:,}{f' {source}' if source else ''}",
        facts=f"{len(growing)} of {len(stores)} stores grow with the text; the largest,"
        f" {largest['store']}, has {largest['slots']} and {largest['bytes']:,} bytes",
        hint=" or ".join(hints) or fallback,
    )


def _window(timed: Sequence[StoreRow], stores: Sequence[StoreRow], budget: int) -> int:
    """The widest window that fits in the stores in time, if the others do not change."""
    left = budget - sum(s["bytes"] for s in stores if not max_slots(s))
    firsts = {f"{s['store']}_first" for s in timed}  # windows do not have these
    per_position = sum(slot_bytes(s) for s in timed if s["store"] not in firsts)
    return Executable.longest_window(left // max(1, per_position))


def _positions(
    stores: Sequence[StoreRow], growing: Sequence[StoreRow], budget: int, steps: int
) -> int:
    """The number of positions that fit; growing stores have about a whole number of slots each."""
    rate = {s["store"]: max(1, round(max_slots(s) / steps)) for s in growing}
    per_step = sum(rate[s["store"]] * slot_bytes(s) for s in growing)
    fixed = total_bytes(stores) - per_step * steps
    return (budget - fixed) // per_step if per_step else 0


def total_bytes(stores: Sequence[StoreRow]) -> int:
    return sum(s["bytes"] for s in stores)


def slot_bytes(store: StoreRow) -> int:
    """Bytes of one position."""
    mirrored = re.search(r"\bt: \d+ \+ (\d+)", str(store["slots"]))
    return store["bytes"] // (max_slots(store) + (int(mirrored[1]) if mirrored else 0))


def max_slots(store: StoreRow) -> int:
    """The slots in time: `l: 4, t: 57` → 57; 0 if there are none."""
    slots = re.search(r"\bt: (\d+)", str(store["slots"]))
    return int(slots[1]) if slots else 0
