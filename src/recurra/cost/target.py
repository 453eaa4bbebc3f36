"""The target of a compilation: the properties of backend and machine that choices by cost use."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from recurra.cost.attention import AttentionKernel
from recurra.cost.prices import PRICES, Prices
from recurra.cost.thresholds import ROWS_PER_TILE


@dataclass(frozen=True)
class Target:
    """A backend on a machine.

    Args:
        rows: rows of a batch that fill a tile; 0: no tiles.
        enough: nanoseconds of a step that needs no tiles, if batch axes go last.
        asking: the cost of polling whether rows go on, in steps of a loop; 0: nothing.
        behind: nanoseconds of work that get a launch of their own behind a host call, if the call
            does not wait for them.
        counted: dims whose loops run on the host, each point a launch, with buffers of its own;
            None: by cost.
        kernel: the kernel of attention, which is one op if that costs less.
        prices: of work.
    """

    rows: int = ROWS_PER_TILE
    enough: float = inf
    asking: float = 0.0
    behind: float = inf
    counted: tuple[str, ...] | None = ()
    kernel: AttentionKernel | None = None
    prices: Prices = PRICES


PLAIN = Target()
