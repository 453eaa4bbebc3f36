"""Find the stride of the points that all reads of an array access along a dim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple

from recurra.ir.expr import compare, evaluate, mod, substitute, symbols
from recurra.ir.graph import Index, Slice
from recurra.ir.types import Domain
from recurra.polyhedral import isl
from recurra.polyhedral.extent import at_sizes


class Stride(NamedTuple):
    """The points q with q % step == phase."""

    step: int
    phase: int

    def first(self, least: int) -> int:
        """The first of the points from `least` on."""
        return least + (self.phase - least) % self.step


def stride(reads: Sequence[tuple[Index, Domain]], sizes: Mapping[str, int]) -> Stride | None:
    """The stride of all points that indices read; None if the points may be adjacent."""
    steps = [e.step for e, _ in reads if isinstance(e, Slice)]
    step = gcd(*steps)
    if step < 2:
        return None
    starts = [substitute(e.lo if isinstance(e, Slice) else e, sizes) for e, _ in reads]
    phase = evaluate(starts[0], dict.fromkeys(symbols(starts[0]), 0)) % step
    for start, (_, domain) in zip(starts, reads, strict=True):
        at = mod(start - phase, step)
        if at != 0 and not isl.always(compare("==", at, 0), at_sizes(domain, sizes)):
            return None
    return Stride(step, phase)
