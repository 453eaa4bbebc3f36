"""What a workload's instructions and a disk take on this machine, measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from recurra.mapping.execute.copier import Copier, Copy
from recurra.mapping.execute.layout import slots, uses
from recurra.mapping.execute.slow import PAGE, Bytes, SlowMemory, pages, whole_pages
from recurra.mapping.execute.workload import Array, Workload
from recurra.mapping.machine import picoseconds

SAMPLES = 6  # of each size, in a round
Moves = Mapping[tuple[int, bool], float]  # (bytes, out of RAM) → seconds


@dataclass(frozen=True)
class Measured:
    """Seconds: medians. `moves` by an instruction that waits, `copies` by the copy engine."""

    instructions: tuple[float, ...]
    moves: Moves
    copies: Moves

    def computing(self, step: int) -> int:
        """Picoseconds with everything in fast memory."""
        return picoseconds(self.instructions[step], 1)

    def moving(self, nbytes: int, *, out: bool) -> int:
        """Picoseconds of reading, or writing, while the instruction waits."""
        return picoseconds(self.moves[nbytes, out], 1)

    def copying(self, nbytes: int, *, out: bool) -> int:
        """Picoseconds of the copy engine."""
        return picoseconds(self.copies[nbytes, out], 1)

    def __str__(self) -> str:
        n = max((n for n, _ in self.moves), default=0)
        if not n:
            return "there is nothing to move"
        rates = [n / self.moves[n, out] / 1e6 for out in (False, True) if (n, out) in self.moves]
        told = " and ".join(f"{x:,.0f} MB/s" for x in rates)
        total = sum(self.instructions) * 1e3
        return f"{total:,.1f} ms of computing; the disk moves {n / 2**20:.1f} MiB at {told}"


def measured(workload: Workload, folder: Path | None = None, rounds: int = 5) -> Measured:
    """Of that many rounds of a `Gauge`."""
    with Gauge(workload, folder) as gauge:
        for _ in range(rounds):
            gauge.round()
        return gauge.measured()


class Gauge:
    """Measures in rounds, so that something else can run in between.

    A round is every instruction once, in order, with everything in RAM, and every size of a buffer
    `SAMPLES` times, anywhere in a file as large as the workload's.
    """

    def __init__(self, workload: Workload, folder: Path | None = None) -> None:
        self.workload = workload
        sizes = [whole_pages(x.nbytes) for x in workload.tensors]
        steps = range(len(workload.operations))
        self.amounts = sorted({(sizes[k], out) for t in steps for k, out in uses(workload, t)})
        self._room = pages(max((n for n, _ in self.amounts), default=0))
        self._random = np.random.default_rng(0)
        self._values = _in_ram(workload)
        self._computed: list[list[float]] = []
        self._moved: list[list[float]] = []
        self._copied: list[list[float]] = []
        self.slow = SlowMemory(folder, slots(workload)[1])
        self._compute()  # compiles

    def __enter__(self) -> Gauge:
        return self

    def __exit__(self, *_: object) -> None:
        self.slow.close()

    def round(self) -> None:
        """Takes a sample of everything."""
        self._computed.append(self._compute())
        self._moved.append([self._mean(self._move, n, out) for n, out in self.amounts])
        with Copier(self.slow) as copier:
            self._copied.append(
                [self._mean(partial(_copy, copier), n, out) for n, out in self.amounts]
            )

    def measured(self) -> Measured:
        """Medians of the rounds; instructions sum up to the median of the rounds' sums."""
        computed = np.array(self._computed)
        middle = np.median(computed, axis=0)
        middle *= np.median(computed.sum(axis=1)) / max(1e-12, middle.sum())
        moves, copies = (
            dict(zip(self.amounts, np.median(x, axis=0).tolist(), strict=True))
            for x in (self._moved, self._copied)
        )
        return Measured(tuple(middle.tolist()), moves, copies)

    def _mean(self, move: Callable[[Bytes, int, bool], None], nbytes: int, out: bool) -> float:
        last = (self.slow.nbytes - nbytes) // PAGE
        places = self._random.integers(0, last + 1, SAMPLES) * PAGE
        start = perf_counter()
        for at in places.tolist():
            move(self._room[:nbytes], at, out)
        return (perf_counter() - start) / SAMPLES

    def _move(self, array: Bytes, at: int, out: bool) -> None:
        (self.slow.write if out else self.slow.read)(array, at)

    def _compute(self) -> list[float]:
        found: list[float] = []
        for k, x in self.workload.given.items():
            self._values[k][...] = x
        for x in self.workload.operations:
            operands = [self._values[k] for k in x.reads]
            outputs = [self._values[k] for k in x.writes]
            start = perf_counter()
            x.compute(operands, outputs)
            found.append(perf_counter() - start)
        return found


def _copy(copier: Copier, array: Bytes, at: int, out: bool) -> None:
    copier.add([Copy(0, 0, array, at, out)])
    copier.wait(1)


def _in_ram(workload: Workload) -> list[Array]:
    """Every tensor, each storage in a place of its own."""
    rooms: dict[int, Bytes] = {}
    found: list[Array] = []
    for x, first in zip(workload.tensors, workload.storage, strict=True):
        if first not in rooms:
            rooms[first] = pages(x.nbytes)
        found.append(rooms[first][: x.nbytes].view(x.dtype).reshape(x.shape))
    return found
