"""Tables of latencies, measured: each instruction with every subset of its buffers in fast memory.

Appendix A of arXiv 2305.07440: of an instruction's buffers the largest eight vary. They are not
measured one instruction after the other, but by runs of the whole program, so that each finds the
caches, and the processor, as its predecessors leave them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Literal, NamedTuple

import numpy as np

from recurra.errors import RecurraError
from recurra.mapping.execute.chance import Floats, middles
from recurra.mapping.execute.costs import Gauge, MeasuredCosts
from recurra.mapping.execute.layout import bounce_places, slots, uses
from recurra.mapping.execute.memories import Bytes
from recurra.mapping.execute.step import WorkloadStep
from recurra.mapping.execute.tables import Subsets, Tables
from recurra.mapping.execute.workload import Workload
from recurra.storage.mapping_problem import VARIED

RUNS = 16  # of the program, in a round
Units = tuple[tuple[int, ...], ...]
Wide = Literal["largest", "sums"]  # what becomes of an instruction of more than eight buffers


class Sample(NamedTuple):
    """Seconds of one instruction with one subset of its units in fast memory."""

    step: int
    subset: int
    moved: float
    computed: float


def measure_tables(
    gauge: Gauge,
    rounds: int = 3,
    tell: Callable[[int], None] = lambda done: None,
    wide: Wide = "largest",
) -> Tables:
    """Medians, in turns with rounds of the gauge, and as its prices have it: everything in fast
    memory, and everything in slow memory, takes what it says. `tell` gets the number of runs that
    are done.

    `wide`: of an instruction of more than eight buffers the largest vary, and the others are in
    slow memory whatever a mapping says; or it has no table, and its times add up. The results of an
    `Execution` that shares the gauge's slow memory are lost.
    """
    if rounds < 1:
        raise RecurraError(f"tables are measured in one round at least, not in {rounds}")
    trials = _SubsetRuns(gauge, wide)
    random = np.random.default_rng(0)
    wholes = [gauge.round().whole]  # now all values are in the file
    for k in range(rounds):
        for done, subsets in enumerate(_runs([len(x) for x in trials.units], random), 1):
            trials.run(subsets)
            tell(k * RUNS + done)
        wholes.append(gauge.round().whole)
    usual = gauge.measured()
    slower = [(x + y) / 2 / usual.whole for x, y in itertools.pairwise(wholes)]
    return trials.tables(usual, slower)


def units(workload: Workload, step: int) -> Units:
    """The buffers of an instruction that are varied: the largest, as many as fit into eight.

    By their positions; those that share a place are one.
    """
    sharing: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for i, (k, _) in enumerate(uses(workload, step)):
        sharing.setdefault(workload.storage[k], []).append(i)
        sizes[workload.storage[k]] = workload.tensors[k].nbytes
    found: list[tuple[int, ...]] = []
    for first in sorted(sharing, key=lambda x: -sizes[x]):
        if sum(map(len, found)) + len(sharing[first]) <= VARIED:
            found.append(tuple(sharing[first]))
    return tuple(sorted(found))


def _runs(counts: Sequence[int], random: np.random.Generator) -> Iterable[list[list[int]]]:
    """A round's runs: the subsets that each instruction has, by the number of its units.

    From one run in which all is in slow memory to one in which all is in fast memory, in any order:
    then an instruction has much in fast memory while its neighbors have, as it is with mappings.
    In the round it has each of its subsets equally often; if there are more than runs, several in
    one run.
    """
    sweeps = [
        sorted(random.permutation(1 << n).tolist(), key=lambda subset: subset.bit_count())
        for n in counts
    ]
    for r in random.permutation(RUNS).tolist():
        found: list[list[int]] = []
        for sweep in sweeps:
            first, end = r * len(sweep) // RUNS, (r + 1) * len(sweep) // RUNS
            found.append(sweep[first : max(end, first + 1)])
        yield found


class _SubsetRuns:
    """Runs the program with any subsets: each value is in fast and slow memory, the same in both.

    Rounds of the gauge leave it there; of what is written in place, runs keep both.
    """

    def __init__(self, gauge: Gauge, wide: Wide) -> None:
        self.workload, self.memory = gauge.workload, gauge.memory
        self.slow, self.rooms = gauge.slow, gauge.rooms
        self.bounce = gauge.execution.bounce
        self.slots, _ = slots(self.workload)
        counts = [len(uses(self.workload, t)) for t in range(len(self.workload.operations))]
        self.tabled = [wide == "largest" or n <= VARIED for n in counts]
        self.units = [units(self.workload, t) if x else () for t, x in enumerate(self.tabled)]
        self.found: list[list[Sample]] = []  # by run

    def run(self, subsets: Sequence[Sequence[int]]) -> None:
        """Once; instructions with several subsets several times, one after the other."""
        ready = [[(m, self._step(t, m)) for m in here] for t, here in enumerate(subsets)]
        for k, given in self.workload.given.items():
            if k in self.workload.shared:
                self._put(k, self.workload.tensors[k].bytes_of(given))
        samples: list[Sample] = []
        for t, here in enumerate(ready):
            over = [old for old, _ in self.workload.operations[t].in_place]
            kept = [(k, self.memory.get(self.rooms[k])) for k in over]
            for subset, step in here:
                for k, before in kept:
                    self._put(k, before)
                start = perf_counter()
                computed = step.run(self.slow)
                samples.append(Sample(t, subset, perf_counter() - start - computed, computed))
            step = here[-1][1]
            for k in step.operation.writes:
                if k in self.workload.shared:
                    self._put(k, self.memory.get(step.rooms[k]))
        self.found.append(samples)

    def tables(self, usual: MeasuredCosts, slower: Sequence[float]) -> Tables:
        """Medians, less what is chance.

        `slower`: how many times as long as usual everything took, by round.
        """
        times = [
            {m: list[tuple[float, float]]() for m in range(1 << len(units))} for units in self.units
        ]
        for r, run in enumerate(self.found):
            by = slower[r // RUNS]
            for x in run:
                times[x.step][x.subset].append((x.moved / by, x.computed / by))
        found = [
            middles([np.array(here) for here in x.values()], self._summed(t, usual))
            for t, x in enumerate(times)
        ]
        steps = tuple(
            Subsets(units, *(tuple(column.tolist()) for column in here.T)) if tabled else None
            for units, here, tabled in zip(self.units, found, self.tabled, strict=True)
        )
        fewest = min(len(here) for x in times for here in x.values())
        return Tables(steps, fewest).scaled(*_levels(found, usual))

    def _summed(self, step: int, prices: MeasuredCosts) -> Floats:
        """[subsets, 2] seconds of moving and computing if they are sums."""
        here, found = uses(self.workload, step), list[tuple[float, float]]()
        for subset in range(1 << len(self.units[step])):
            pairs = zip(here, self._inside(step, subset), strict=True)
            out = [(len(self.rooms[k]), out) for (k, out), within in pairs if not within]
            found.append((sum(prices.moves[x] for x in out), prices.instructions[step]))
        return np.array(found)

    def _inside(self, step: int, subset: int) -> list[bool]:
        """Mark the instruction's buffers that are in fast memory."""
        among = {i for k, unit in enumerate(self.units[step]) if subset >> k & 1 for i in unit}
        return [i in among for i in range(len(uses(self.workload, step)))]

    def _step(self, time: int, subset: int) -> WorkloadStep:
        here, inside = uses(self.workload, time), self._inside(time, subset)
        at = bounce_places(self.workload, time, 0, inside)
        step = WorkloadStep(self.workload.name, self.workload.operations[time])
        rooms = {k: self.rooms[k] for k in (*step.operation.reads, *step.operation.writes)}
        for (k, out), within in zip(here, inside, strict=True):
            if not within:
                first = at[self.workload.storage[k]]
                rooms[k] = self.bounce[first : first + len(self.rooms[k])]
                (step.writes if out else step.reads).append((rooms[k], self.slots[k]))
        step.find(self.workload, self.memory, rooms)
        return step

    def _put(self, tensor: int, value: Bytes) -> None:
        """Both in fast and in slow memory."""
        self.memory.put(value, self.rooms[tensor])
        if tensor in self.slots:
            self.slow.write(self.rooms[tensor], self.slots[tensor])


def _levels(found: Sequence[Floats], usual: MeasuredCosts) -> tuple[float, float]:
    """Factors of what is moved, and computed, with which the program takes what the gauge says,
    both with everything in fast memory and with everything in slow memory."""
    fast = sum(float(x[-1, 1]) for x in found)
    moved, computed = (sum(float(x[0, column]) for x in found) for column in (0, 1))
    computing = sum(usual.instructions) / fast if fast > 0 else 1.0
    moving = (usual.whole - computing * computed) / moved if moved > 0 else 1.0
    return max(0.0, moving), computing
