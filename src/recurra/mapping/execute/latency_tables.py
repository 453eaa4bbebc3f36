"""Tables of latencies from measured seconds of instructions, by their buffers in fast memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recurra.mapping.machine_model import picoseconds
from recurra.storage.mapping_problem import Latency


@dataclass(frozen=True)
class Subsets:
    """An instruction's seconds: of subset m, in which unit k is in fast memory if bit k of m is 1.

    A unit holds the positions, among the instruction's buffers, of those that share an address: all
    of them are in fast memory, or none. Buffers in no unit were in slow memory.
    """

    units: tuple[tuple[int, ...], ...]
    moved: tuple[float, ...]
    computed: tuple[float, ...]

    def cost(self) -> Latency:
        """The table; part of a unit, which no mapping has in fast memory, gains a share of it."""
        varied = tuple(k for unit in self.units for k in unit)
        masks = ([m >> k & 1 for k in range(len(varied))] for m in range(1 << len(varied)))
        return Latency(varied, tuple(self._latency(iter(bits)) for bits in masks))

    def _latency(self, bits: Iterator[int]) -> int:
        weighted = [(1.0, 0)]  # weights and subsets
        for k, unit in enumerate(self.units):
            share = sum(next(bits) for _ in unit) / len(unit)
            weighted = [
                (weight * part, subset | inside << k)
                for weight, subset in weighted
                for inside, part in ((0, 1 - share), (1, share))
                if part
            ]
        return picoseconds(sum(w * (self.moved[m] + self.computed[m]) for w, m in weighted), 1)


@dataclass(frozen=True)
class Tables:
    """The measured subsets of each instruction, None for one whose times add up.

    Each subset was measured at least `samples` times.
    """

    steps: tuple[Subsets | None, ...]
    samples: int

    def scaled(self, moving: float, computing: float) -> Tables:
        """The tables of a machine on which moving and computing take so many times as long."""

        def scale(subsets: Subsets) -> Subsets:
            moved = tuple(x * moving for x in subsets.moved)
            return Subsets(subsets.units, moved, tuple(x * computing for x in subsets.computed))

        return replace(self, steps=tuple(x and scale(x) for x in self.steps))

    def __str__(self) -> str:
        steps = [x for x in self.steps if x is not None]
        measured = sum(len(x.moved) for x in steps)
        others = sum(1 << sum(map(len, x.units)) for x in steps) - measured
        more = f"; {others:,} more cannot be, and lie between" if others else ""
        return (
            f"tables of {len(steps):,} instructions: {measured:,} subsets of buffers, each "
            f"measured {self.samples} times at least{more}"
        )
