"""A program's peak against a budget: what does not fit is refused before anything runs.

What could be done about a tensor is a `BudgetChoice`: docs/internals/memory-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recurra.errors import Loc, PlanError
from recurra.memory_model.peak import KINDS, Peak
from recurra.support.byte_units import rounded_up

How = Literal["keep", "tile", "recompute", "host", "disk"]
NEEDED = ("state", "input", "output")  # what no choice takes away
NAMED = 3


@dataclass(frozen=True)
class BudgetChoice:
    """A choice for a tensor: it saves `saves` bytes at the peak, and costs `ns` in every run."""

    tensor: str
    how: How
    saves: int
    ns: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        price = f", {self.ns / 1e6:.3g} ms a run" if self.ns else ""
        return f"{self.tensor}: {self.how}, saves {self.saves:,} B{price}" + (
            f" ({self.why})" if self.why else ""
        )


def expect_room(peak: Peak, budget: int, loc: Loc | None = None) -> None:
    """Raises PlanError where the peak is more bytes than the budget.

    It says by how much, what is largest, which bound would fit, and the least budget known to do.
    """
    if peak.nbytes <= budget:
        return
    largest = ", ".join(f"{h.name} {h.nbytes:,} ({KINDS[h.kind]})" for h in peak.held[:NAMED])
    least = f"the least budget known to do is {rounded_up(peak.nbytes)}"
    if needed(peak) > budget:
        least += f"; parameters, inputs and outputs alone take {needed(peak):,}"
    others = () if peak.asked else peak.sizes
    fits = [f"{b}: {n}" for b in others if (n := fitting(peak, b, budget))]
    raise PlanError(
        f"the program takes {peak.nbytes:,} bytes at its peak, {peak.nbytes - budget:,} more than"
        f" memory={budget:,}",
        facts=f"that is at {peak.at}; the largest are {largest}; {least}",
        hint=" or ".join([*fits, f'memory="{rounded_up(peak.nbytes)}"']),
        loc=loc,
    )


def needed(peak: Peak) -> int:
    """The bytes of a peak that no choice takes away."""
    return sum(n for k, n in peak.by_kind.items() if k in NEEDED)


def fitting(peak: Peak, bound: str, budget: int) -> int:
    """The largest value of a bound, below its own, for which the peak fits; 0: there is none."""
    low, high = 0, peak.sizes[bound]
    while high - low > 1:
        half = (low + high) // 2
        low, high = (half, high) if peak.of(**{bound: half}) <= budget else (low, half)
    return low
