"""Measured costs of a workload's instructions and of a slow memory, on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.execute.copier import Copier, Transfer
from recurra.mapping.execute.layout import problem_of, slots
from recurra.mapping.execute.memories import PAGE, Memory, Room, whole_pages
from recurra.mapping.execute.run import RAM, PreparedWorkload
from recurra.mapping.execute.workload import Workload
from recurra.mapping.machine import picoseconds
from recurra.storage.mapping_problem import nothing

Amount = tuple[int, bool]  # bytes, out of RAM or into it
Moves = Mapping[Amount, float]  # seconds


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds. `longer`: with everything in slow memory; `moves`: an instruction's part of that,
    which waits for it, and computes slower after such a rest; `copies`: of the copy engine
    beside instructions."""

    instructions: tuple[float, ...]
    longer: float
    moves: Moves
    copies: Moves
    drag: float  # what a second of copying adds to the instructions beside it

    def computing(self, step: int) -> int:
        """Picoseconds with everything in fast memory."""
        return picoseconds(self.instructions[step], 1)

    def moving(self, nbytes: int, *, out: bool) -> int:
        """Picoseconds of reading, or writing, while the instruction waits."""
        return picoseconds(self.moves[nbytes, out], 1)

    def copying(self, nbytes: int, *, out: bool) -> int:
        """Picoseconds of the copy engine."""
        return picoseconds(self.copies[nbytes, out], 1)

    @property
    def whole(self) -> float:
        """The program with everything in slow memory."""
        return sum(self.instructions) + self.longer

    def beside(self, then: MeasuredCosts) -> tuple[float, float]:
        """The factors by which moving and computing take longer than they did then."""
        pairs = [(self.longer, then.longer), (sum(self.instructions), sum(then.instructions))]
        moving, computing = (x / y if x > 0 < y else 1.0 for x, y in pairs)
        return moving, computing

    def __str__(self) -> str:
        n = max((n for n, _ in self.moves), default=0)
        if not n:
            return "there is nothing to move"
        seconds = [self.moves.get((n, out), 0) for out in (False, True)]
        told = " and ".join(f"{n / x / 1e6:,.0f} MB/s" for x in seconds if x)
        total = sum(self.instructions) * 1e3
        if not told:
            return f"{total:,.1f} ms of computing, and no more with everything in slow memory"
        return f"{total:,.1f} ms of computing; slow memory moves {n / 2**20:.1f} MiB at {told}"


@dataclass(frozen=True)
class _Round:
    computed: list[float]  # by instruction, everything in fast memory
    slowly: float  # all of them, with everything in slow memory
    moved: dict[Amount, list[float]]  # in that
    copied: list[tuple[Amount, float]]
    drag: float


class Gauge:
    """Measures in rounds, so that something else can run in between.

    A round runs the instructions three times: with everything in fast memory; with everything in
    slow memory; and in fast memory while the copy engine never rests.

    `rooms`: each tensor's, in fast memory; `execution`: that with everything in slow memory.
    """

    def __init__(self, workload: Workload, memory: Memory = RAM) -> None:
        self.workload, self.memory = workload, memory
        problem = problem_of(workload, 0, _Bytes())
        sizes = [(b.size, b.is_output) for b in problem.buffers]
        self._uses = [[sizes[i] for i in here] for here in problem.uses]
        self._amounts = sorted(set(sizes))
        self._random = np.random.default_rng(0)
        self.rooms = in_fast(workload, memory)
        self._values = [
            memory.over(room, x) for x, room in zip(workload.tensors, self.rooms, strict=True)
        ]
        self._room = memory.room(max(n for n, _ in sizes))
        self._rounds: list[_Round] = []
        self._spare = slots(workload)[1]  # behind it copies write what nobody reads
        self.slow = memory.slow(self._spare + 4 * len(self._room))
        try:
            self.execution = PreparedWorkload(
                workload, problem, nothing(problem), memory, self.slow
            )
            self._compute()  # compiles
        except BaseException:
            self.slow.close()
            raise

    def __enter__(self) -> Gauge:
        return self

    def __exit__(self, *_: object) -> None:
        self.slow.close()

    def round(self) -> MeasuredCosts:
        """Measure one more round; `measured` tells about all of them.

        The results of a `PreparedWorkload` that shares the slow memory are lost.
        """
        computed = self._compute()
        self.slow.log = {x: [] for x in self._amounts}
        slowly, moved = self.execution.run().total, self.slow.log
        self.slow.log = None
        self._rounds.append(_Round(computed, slowly, moved, *self._beside(sum(computed))))
        return self._measured(self._rounds[-1:])

    def measured(self) -> MeasuredCosts:
        """Medians of the rounds; instructions sum up to the median of the rounds' sums."""
        return self._measured(self._rounds)

    def _measured(self, rounds: list[_Round]) -> MeasuredCosts:
        computed = _medians([r.computed for r in rounds])
        longer = max(0.0, float(np.median([r.slowly for r in rounds]) - computed.sum()))
        copied: dict[Amount, list[float]] = {x: [] for x in self._amounts}
        for amount, seconds in (x for r in rounds for x in r.copied):
            copied[amount].append(seconds)
        return MeasuredCosts(
            tuple(computed.tolist()),
            longer,
            self._prices(rounds, longer),
            {x: float(np.mean(found)) for x, found in copied.items()},
            max(0.0, float(np.median([r.drag for r in rounds]))),
        )

    def _prices(self, rounds: list[_Round], longer: float) -> Moves:
        """The price of moving each size, such that they add up to the program's additional time."""
        means = [{x: float(np.mean(found)) for x, found in r.moved.items()} for r in rounds]
        middle = {x: float(np.median([mean[x] for mean in means])) for x in self._amounts}
        total = sum(middle[x] for here in self._uses for x in here)
        return {x: time * longer / total for x, time in middle.items()}

    def _beside(self, alone: float) -> tuple[list[tuple[Amount, float]], float]:
        """Computes while copies go on, and until there is one of each size: how long each of them
        took, and what a second of them added."""
        kinds = len(self._amounts)
        with Copier(self.slow) as copier:
            copier.add([self._copy(k) for k in range(kinds * (2 + int(alone / 1e-4 / kinds)))])
            together = sum(self._compute())
            spent = sum(copier.seconds.values())
            copier.wait(kinds)
            finished = [(self._amounts[k % kinds], copier.seconds[k]) for k in copier.finished]
        return finished, (together - alone) / max(spent, 1e-9)

    def _copy(self, index: int) -> Transfer:
        nbytes, out = self._amounts[index % len(self._amounts)]
        first, end = (self._spare, self.slow.nbytes) if out else (0, self._spare)
        at = int(self._random.integers(first // PAGE, (end - nbytes) // PAGE + 1)) * PAGE
        return Transfer(index, index, self._room[:nbytes], at, out)

    def _compute(self) -> list[float]:
        found: list[float] = []
        for k, x in self.workload.given.items():
            self.memory.put(self.workload.tensors[k].bytes_of(x), self.rooms[k])
        for x in self.workload.operations:
            operands = [self._values[k] for k in x.reads]
            outputs = [self._values[k] for k in x.writes]
            start = perf_counter()
            x.compute(operands, outputs)
            found.append(perf_counter() - start)
        return found


class _Bytes:
    """Prices of nothing in particular."""

    def computing(self, step: int) -> int:
        return step * 0

    def moving(self, nbytes: int, *, out: bool) -> int:
        return nbytes + out

    copying = moving


def _medians(rounds: list[list[float]]) -> NDArray[np.float64]:
    """The median time of each instruction, scaled to add up to the median of the rounds' sums."""
    times = np.array(rounds)
    middle = np.median(times, axis=0)
    return middle * np.median(times.sum(axis=1)) / max(1e-12, float(middle.sum()))


def in_fast(workload: Workload, memory: Memory = RAM) -> list[Room]:
    """A room for every tensor, each storage a place of its own of one block, as fast memory is
    one."""
    at: dict[int, int] = {}
    end = 0
    for x, first in zip(workload.tensors, workload.storage, strict=True):
        if first not in at:
            at[first], end = end, end + whole_pages(x.nbytes)
    block, every = memory.room(end), zip(workload.tensors, workload.storage, strict=True)
    return [block[at[first] : at[first] + whole_pages(x.nbytes)] for x, first in every]
