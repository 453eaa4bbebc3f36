"""Dependence distances along a dim, called lags: p - q for a reader at p and a source at q.

They hold for every size of the bounds, so a lag is finite only if it is so for all T. Lags decide
whether a loop over the dim is legal (Allen and Kennedy, 1987).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recurra.ir.expr import TRUE, Expr, Product, symbols, walk
from recurra.ir.graph import Index, Slice, index_symbols
from recurra.ir.order import earliest_times
from recurra.ir.types import Domain, is_shift
from recurra.polyhedral import isl


@dataclass(frozen=True)
class Lag:
    """An interval of distances: low <= p - q <= high; None: no bound."""

    low: int | None
    high: int | None

    @property
    def exact(self) -> int | None:
        return self.low if self.low == self.high else None

    def __neg__(self) -> Lag:
        low, high = (None if x is None else -x for x in (self.high, self.low))
        return Lag(low, high)

    def __add__(self, steps: int) -> Lag:
        low, high = (None if x is None else x + steps for x in (self.low, self.high))
        return Lag(low, high)


def lag(dim: str, index: Index, sink: Domain, when: Expr | None = None) -> Lag:
    """The tightest bounds of p - q along `dim`: p in `sink` where `when` holds, q = `index`."""
    shift = None if isinstance(index, Slice) else is_shift(index, dim)
    if shift is not None:
        return Lag(-shift, -shift)
    ends = (index.lo, index.hi) if isinstance(index, Slice) else (index,)
    if any(isinstance(x, Product) for e in ends for x in walk(e)):
        return Lag(None, None)
    used = {dim} | index_symbols(index) | (set() if when is None else symbols(when))
    within = sink.of(used)
    chosen = [] if when is None or when == TRUE else [isl.isl_text(when)]
    relation = isl.index_constraints([index], [f"{dim}'"])
    constraints = tuple([*isl.box_constraints(within), *chosen, *relation])
    return Lag(*isl.gap(dim, f"{dim}'", within.dims, constraints))


def direction(
    nodes: Sequence[str], lags: Sequence[tuple[str, str, Lag]]
) -> tuple[int, dict[str, int]] | None:
    """The direction of a loop over a cycle, +1 if it may go up, else -1, and each node's shift.

    None if no loop is legal. `lags` are (source, sink, lag).
    """
    for sign in (1, -1):
        lows = [(source, sink, (x if sign > 0 else -x).low) for source, sink, x in lags]
        bounded = [(source, sink, low) for source, sink, low in lows if low is not None]
        shifts = earliest_times(nodes, bounded) if len(bounded) == len(lags) else None
        if shifts is not None:
            return sign, shifts
    return None
