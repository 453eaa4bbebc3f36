"""Check a program's peak against a budget before anything runs.

The ways to save a tensor's memory are `BudgetChoice`s: docs/internals/memory-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recurra.errors import Loc, PlanError
from recurra.memory_model.peak import KINDS, Peak
from recurra.support.byte_units import rounded_up

How = Literal["keep", "tile", "recompute", "host", "disk"]
NEEDED = ("state", "input", "output")  # kinds that no choice saves
NAMED = 3


@dataclass(frozen=True)
class BudgetChoice:
    """A way to keep a tensor: it saves `saves` bytes at the peak, and costs `ns` in every run."""

    tensor: str
    how: How
    saves: int
    ns: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        price = f", {self.ns / 1e6:.3g} ms a run" if self.ns else ""
        why = f" ({self.why})" if self.why else ""
        return f"{self.tensor}: {self.how}, saves {self.saves:,} B{price}{why}"


def expect_room(peak: Peak, budget: int, loc: Loc | None = None) -> None:
    """Raise PlanError if the peak exceeds the budget.

    The error has the excess, the largest tensors, bounds that fit, and the least sufficient budget.
    """
    if peak.nbytes <= budget:
        return
    largest = ", ".join(f"{h.name} {h.nbytes:,} ({KINDS[h.kind]})" for h in peak.held[:NAMED])
    least = f"the least budget known to do is {rounded_up(peak.nbytes)}"
    if needed(peak) > budget:
        least += f"; parameters, inputs and outputs alone take {needed(peak):,}"
    others = () if peak.fixed else peak.sizes
    fits = [f"{b}: {n}" for b in others if (n := fitting(peak, b, budget))]
    raise PlanError(
        f"the program takes {peak.nbytes:,} bytes at its peak, {peak.nbytes - budget:,} more than"
        f" memory={budget:,}",
        facts=f"that is at {peak.at}; the largest are {largest}; {least}",
        hint=" or ".join([*fits, f'memory="{rounded_up(peak.nbytes)}"']),
        loc=loc,
    )


def needed(peak: Peak) -> int:
    """The bytes of a peak that no choice saves."""
    return sum(n for k, n in peak.by_kind.items() if k in NEEDED)


def fitting(peak: Peak, bound: str, budget: int) -> int:
    """The largest smaller value of a bound for which the peak fits; 0 if there is none."""
    low, high = 0, peak.sizes[bound]
    while high - low > 1:
        half = (low + high) // 2
        low, high = (half, high) if peak.of(**{bound: half}) <= budget else (low, half)
    return low
