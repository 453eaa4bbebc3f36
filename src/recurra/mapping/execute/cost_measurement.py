"""Measurement of the costs of a workload's instructions and of a slow memory, on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.execute.copier import Copier, Transfer
from recurra.mapping.execute.memories import PAGE, ByteBuffer, Memory, whole_pages
from recurra.mapping.execute.prepared_workload import RAM, PreparedWorkload
from recurra.mapping.execute.workload import Workload
from recurra.mapping.execute.workload_problem import addresses, problem_of, slow_addresses
from recurra.mapping.machine_model import picoseconds
from recurra.storage.mapping_problem import nothing

Amount = tuple[int, bool]  # bytes, and whether they move out of fast memory
Moves = Mapping[Amount, float]  # seconds


@dataclass(frozen=True)
class MeasuredCosts:
    """Measured seconds."""

    instructions: tuple[float, ...]  # with everything in fast memory
    longer: float  # the additional time of the program with everything in slow memory
    moves: Moves  # shares of that: an instruction waits, and computes slower afterwards
    copies: Moves  # by the copy engine, beside instructions
    drag: float  # the time that a second of copying adds to the instructions beside it

    def computing(self, step: int) -> int:
        """The picoseconds of an instruction with everything in fast memory."""
        return picoseconds(self.instructions[step], 1)

    def moving(self, nbytes: int, *, out: bool) -> int:
        """The picoseconds of a read or write that the instruction waits for."""
        return picoseconds(self.moves[nbytes, out], 1)

    def copying(self, nbytes: int, *, out: bool) -> int:
        """The picoseconds of a copy by the copy engine."""
        return picoseconds(self.copies[nbytes, out], 1)

    @property
    def all_slow(self) -> float:
        """The seconds of the program with everything in slow memory."""
        return sum(self.instructions) + self.longer

    def relative_to(self, earlier: MeasuredCosts) -> tuple[float, float]:
        """The factors by which moving and computing take longer than before."""
        sums = (sum(self.instructions), sum(earlier.instructions))
        moving, computing = (
            x / y if x > 0 < y else 1.0 for x, y in ((self.longer, earlier.longer), sums)
        )
        return moving, computing

    def __str__(self) -> str:
        n = max((n for n, _ in self.moves), default=0)
        if not n:
            return "there is nothing to move"
        seconds = [self.moves.get((n, out), 0) for out in (False, True)]
        rates = " and ".join(f"{n / x / 1e6:,.0f} MB/s" for x in seconds if x)
        total = sum(self.instructions) * 1e3
        if not rates:
            return f"{total:,.1f} ms of computing, and no more with everything in slow memory"
        return f"{total:,.1f} ms of computing; slow memory moves {n / 2**20:.1f} MiB at {rates}"


@dataclass(frozen=True)
class _Round:
    computed: list[float]  # by instruction, everything in fast memory
    all_slow: float  # the whole program, everything in slow memory
    moved: dict[Amount, list[float]]  # the moves of that run
    copied: list[tuple[Amount, float]]
    drag: float


class Gauge:
    """A measurement in rounds, so that something else can run in between.

    A round runs the instructions three times: with everything in fast memory; with everything in
    slow memory; and in fast memory while the copy engine is always busy.

    `blocks`: of each tensor, in fast memory; `execution`: the run with everything in slow memory.
    """

    def __init__(self, workload: Workload, memory: Memory = RAM) -> None:
        self.workload, self.memory = workload, memory
        problem = problem_of(workload, 0, _Bytes())
        sizes = [(b.size, b.is_output) for b in problem.buffers]
        self._uses = [[sizes[i] for i in here] for here in problem.uses]
        self._amounts = sorted(set(sizes))
        self._random = np.random.default_rng(0)
        self.blocks = fast_blocks(workload, memory)
        self._values = [
            memory.view_as(block, x) for x, block in zip(workload.tensors, self.blocks, strict=True)
        ]
        self._copied_block = memory.allocate(max(n for n, _ in sizes))
        self._rounds: list[_Round] = []
        self._spare = slow_addresses(workload)[1]  # copies write behind all tensors
        self.slow = memory.slow(self._spare + 4 * len(self._copied_block))
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
        """Measure one more round; return its costs, while `measured` has those of all rounds.

        The results of a `PreparedWorkload` that shares the slow memory are lost.
        """
        computed = self._compute()
        self.slow.log = {x: [] for x in self._amounts}
        all_slow, moved = self.execution.run().total, self.slow.log
        self.slow.log = None
        self._rounds.append(_Round(computed, all_slow, moved, *self._copy_beside(sum(computed))))
        return self._measured(self._rounds[-1:])

    def measured(self) -> MeasuredCosts:
        """The medians of the rounds; instructions sum up to the median of the rounds' sums."""
        return self._measured(self._rounds)

    def _measured(self, rounds: list[_Round]) -> MeasuredCosts:
        computed = _medians([r.computed for r in rounds])
        longer = max(0.0, float(np.median([r.all_slow for r in rounds]) - computed.sum()))
        copied: dict[Amount, list[float]] = {x: [] for x in self._amounts}
        for amount, seconds in (x for r in rounds for x in r.copied):
            copied[amount].append(seconds)
        return MeasuredCosts(
            tuple(computed.tolist()),
            longer,
            self._prices(rounds, longer),
            {x: float(np.mean(seconds)) for x, seconds in copied.items()},
            max(0.0, float(np.median([r.drag for r in rounds]))),
        )

    def _prices(self, rounds: list[_Round], longer: float) -> Moves:
        """Return prices of moving each size that add up to the program's additional time."""
        means = [{x: float(np.mean(seconds)) for x, seconds in r.moved.items()} for r in rounds]
        medians = {x: float(np.median([mean[x] for mean in means])) for x in self._amounts}
        total = sum(medians[x] for here in self._uses for x in here)
        return {x: time * longer / total for x, time in medians.items()}

    def _copy_beside(self, alone: float) -> tuple[list[tuple[Amount, float]], float]:
        """Compute beside copies, at least one of each size; return their seconds, and the time
        that a second of copying added."""
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
        return Transfer(index, index, self._copied_block[:nbytes], at, out)

    def _compute(self) -> list[float]:
        """Run all instructions in fast memory; return their seconds."""
        seconds: list[float] = []
        for k, x in self.workload.inputs.items():
            self.memory.put(self.workload.tensors[k].bytes_of(x), self.blocks[k])
        for x in self.workload.operations:
            operands = [self._values[k] for k in x.reads]
            outputs = [self._values[k] for k in x.writes]
            start = perf_counter()
            x.compute(operands, outputs)
            seconds.append(perf_counter() - start)
        return seconds


class _Bytes:
    """Placeholder prices: measuring needs only the sizes of a problem."""

    def computing(self, step: int) -> int:
        return step * 0

    def moving(self, nbytes: int, *, out: bool) -> int:
        return nbytes + out

    copying = moving


def _medians(rounds: list[list[float]]) -> NDArray[np.float64]:
    """Return median times of instructions, scaled to sum up to the median of the rounds' sums."""
    times = np.array(rounds)
    medians = np.median(times, axis=0)
    return medians * np.median(times.sum(axis=1)) / max(1e-12, float(medians.sum()))


def fast_blocks(workload: Workload, memory: Memory = RAM) -> list[ByteBuffer]:
    """Allocate all tensors in one block, as fast memory is one; return the part of each."""
    at, end = addresses(workload, range(len(workload.tensors)))
    block = memory.allocate(end)
    return [block[at[k] : at[k] + whole_pages(x.nbytes)] for k, x in enumerate(workload.tensors)]
