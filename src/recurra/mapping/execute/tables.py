"""Measured seconds of each instruction, by what it has in fast memory → tables of latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from recurra.mapping.machine import picoseconds
from recurra.storage.mapping_problem import Latency


@dataclass(frozen=True)
class Subsets:
    """An instruction's seconds: of subset m, in which unit k is in fast memory if bit k of m is 1.

    A unit holds the positions, among the instruction's buffers, of those that share a place: all
    of them are in fast memory, or none. What is in no unit was in slow memory.
    """

    units: tuple[tuple[int, ...], ...]
    moved: tuple[float, ...]
    computed: tuple[float, ...]

    def cost(self) -> Latency:
        """A part of a unit, which no mapping has in fast memory, gains its share of the unit."""
        varied = tuple(k for unit in self.units for k in unit)
        masks = ([m >> k & 1 for k in range(len(varied))] for m in range(1 << len(varied)))
        return Latency(varied, tuple(self._latency(iter(bits)) for bits in masks))

    def _latency(self, bits: Iterator[int]) -> int:
        among = [(1.0, 0)]  # subsets, and how much each counts
        for k, unit in enumerate(self.units):
            share = sum(next(bits) for _ in unit) / len(unit)
            among = [
                (weight * part, subset | inside << k)
                for weight, subset in among
                for inside, part in ((0, 1 - share), (1, share))
                if part
            ]
        return picoseconds(sum(w * (self.moved[m] + self.computed[m]) for w, m in among), 1)


@dataclass(frozen=True)
class Tables:
    """The measured subsets of each instruction, None for one whose times add up.

    Each subset was measured `samples` times, at least.
    """

    steps: tuple[Subsets | None, ...]
    samples: int

    def scaled(self, moving: float, computing: float) -> Tables:
        """The tables of a machine that moves and computes so many times as long."""
        return replace(
            self,
            steps=tuple(
                x and Subsets(x.units, _times(x.moved, moving), _times(x.computed, computing))
                for x in self.steps
            ),
        )

    def __str__(self) -> str:
        steps = [x for x in self.steps if x is not None]
        measured = sum(len(x.moved) for x in steps)
        lie = sum(1 << sum(map(len, x.units)) for x in steps) - measured
        told = f"; {lie:,} more cannot be, and lie between" if lie else ""
        return (
            f"tables of {len(steps):,} instructions: {measured:,} subsets of buffers, each "
            f"measured {self.samples} times at least{told}"
        )


def _times(seconds: Sequence[float], factor: float) -> tuple[float, ...]:
    return tuple(x * factor for x in seconds)
