"""target: what a program is compiled for, as choices by cost see it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from recurra.cost.attention import AttentionKernel
from recurra.cost.prices import PRICES, Prices
from recurra.cost.thresholds import ROWS_PER_TILE


@dataclass(frozen=True)
class Target:
    """A backend on a machine.

    `rows` of a batch fill a tile (0: no tiles); where batch axes go last, a step of `enough`
    nanoseconds needs none. `asking` whether rows go on costs so many steps of a loop (0: nothing).
    What no host call waits for runs behind it, in a launch of its own, if it takes `behind`
    nanoseconds. Loops over dims that are `counted` run on the host, each point a launch, with
    buffers of its own (None: by cost). `kernel` is what there is for attention, which is one op
    where that costs less. `prices` of work: what is weighed with.
    """

    rows: int = ROWS_PER_TILE
    enough: float = inf
    asking: float = 0.0
    behind: float = inf
    counted: tuple[str, ...] | None = ()
    kernel: AttentionKernel | None = None
    prices: Prices = PRICES


PLAIN = Target()
