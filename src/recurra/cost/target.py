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
        tile_rows: rows of a batch that fill a tile; 0: no tiles.
        untiled_step_ns: nanoseconds of a step that needs no tiles, if batch axes go last.
        poll_steps: the cost of polling whether rows go on, in steps of a loop; 0: nothing.
        min_overlapped_ns: nanoseconds of work that get a launch of their own, if no host
            call waits for them.
        host_loops: dims whose loops run on the host, each point a launch, with buffers of its own;
            None: by cost.
        attention_kernel: the kernel of attention, which is one op if that costs less.
        prices: of work.
    """

    tile_rows: int = ROWS_PER_TILE
    untiled_step_ns: float = inf
    poll_steps: float = 0.0
    min_overlapped_ns: float = inf
    host_loops: tuple[str, ...] | None = ()
    attention_kernel: AttentionKernel | None = None
    prices: Prices = PRICES


PLAIN = Target()
