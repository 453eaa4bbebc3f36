"""Measure tables of latencies: each instruction with every subset of its buffers in fast memory.

Appendix A of arXiv 2305.07440: the largest eight buffers of an instruction vary. They are measured
in runs of the whole program, not one instruction after the other, so that each instruction finds
the caches and the processor as its predecessors leave them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Literal, NamedTuple

import numpy as np

from recurra.errors import RecurraError
from recurra.mapping.execute.cost_measurement import Gauge, MeasuredCosts
from recurra.mapping.execute.latency_tables import Subsets, Tables
from recurra.mapping.execute.memories import Bytes
from recurra.mapping.execute.noise_shrinkage import Floats, shrunk_medians
from recurra.mapping.execute.prepared_workload import WorkloadStep
from recurra.mapping.execute.workload import Workload
from recurra.mapping.execute.workload_problem import addresses, slow_addresses, uses
from recurra.storage.mapping_problem import VARIED

RUNS = 16  # of the program, in a round
Units = tuple[tuple[int, ...], ...]
Wide = Literal["largest", "sums"]  # the cost of an instruction of more than eight buffers


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
    """Measure medians, in turns with rounds of the gauge; `tell` gets the number of runs done.

    They are scaled to the gauge's prices: everything in fast memory, and everything in slow memory,
    takes as long as there. `wide`: of an instruction of more than eight buffers the largest vary,
    and the others are in slow memory whatever the mapping; or it has no table, and its times add
    up. The results of a `PreparedWorkload` that shares the gauge's slow memory are lost.
    """
    if rounds < 1:
        raise RecurraError(f"tables are measured in one round at least, not in {rounds}")
    trials = _SubsetRuns(gauge, wide)
    random = np.random.default_rng(0)
    all_slow = [gauge.round().all_slow]  # now all values are in the file
    for k in range(rounds):
        for done, subsets in enumerate(_runs([len(x) for x in trials.units], random), 1):
            trials.run(subsets)
            tell(k * RUNS + done)
        all_slow.append(gauge.round().all_slow)
    usual = gauge.measured()
    slower = [(x + y) / 2 / usual.all_slow for x, y in itertools.pairwise(all_slow)]
    return trials.tables(usual, slower)


def units(workload: Workload, step: int) -> Units:
    """Return the positions of an instruction's varied buffers: the largest, at most eight.

    Those that share an address are one unit.
    """
    sharing: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for i, (k, _) in enumerate(uses(workload, step)):
        sharing.setdefault(workload.storage[k], []).append(i)
        sizes[workload.storage[k]] = workload.tensors[k].nbytes
    varied: list[tuple[int, ...]] = []
    for first in sorted(sharing, key=lambda x: -sizes[x]):
        if sum(map(len, varied)) + len(sharing[first]) <= VARIED:
            varied.append(tuple(sharing[first]))
    return tuple(sorted(varied))


def _runs(counts: Sequence[int], random: np.random.Generator) -> Iterable[list[list[int]]]:
    """Yield the runs of a round: for each instruction, given the number of its units, its subsets.

    Runs range from all in slow memory to all in fast memory, in random order, so that an
    instruction has much in fast memory when its neighbors have, as with mappings. A round has each
    subset equally often; one run has several subsets if there are more of them than runs.
    """
    sweeps = [
        sorted(random.permutation(1 << n).tolist(), key=lambda subset: subset.bit_count())
        for n in counts
    ]
    for r in random.permutation(RUNS).tolist():
        run: list[list[int]] = []
        for sweep in sweeps:
            first, end = r * len(sweep) // RUNS, (r + 1) * len(sweep) // RUNS
            run.append(sweep[first : max(end, first + 1)])
        yield run


class _SubsetRuns:
    """Runs of the program with any subsets: each value is in both fast and slow memory.

    Rounds of the gauge leave the values there; runs keep both copies of tensors written in place.
    """

    def __init__(self, gauge: Gauge, wide: Wide) -> None:
        self.workload, self.memory = gauge.workload, gauge.memory
        self.slow, self.blocks = gauge.slow, gauge.blocks
        self.bounce = gauge.execution.bounce
        self.slow_addresses, _ = slow_addresses(self.workload)
        counts = [len(uses(self.workload, t)) for t in range(len(self.workload.operations))]
        self.tabled = [wide == "largest" or n <= VARIED for n in counts]
        self.units = [units(self.workload, t) if x else () for t, x in enumerate(self.tabled)]
        self.samples: list[list[Sample]] = []  # by run

    def run(self, subsets: Sequence[Sequence[int]]) -> None:
        """Run once; an instruction with several subsets runs once with each of them."""
        ready = [[(m, self._step(t, m)) for m in here] for t, here in enumerate(subsets)]
        for k, values in self.workload.inputs.items():
            if k in self.workload.shared:
                self._put(k, self.workload.tensors[k].bytes_of(values))
        samples: list[Sample] = []
        for t, here in enumerate(ready):
            overwritten = [old for old, _ in self.workload.operations[t].in_place]
            backups = [(k, self.memory.get(self.blocks[k])) for k in overwritten]
            for subset, step in here:
                for k, backup in backups:
                    self._put(k, backup)
                start = perf_counter()
                computed = step.run(self.slow)
                samples.append(Sample(t, subset, perf_counter() - start - computed, computed))
            step = here[-1][1]
            for k in step.operation.writes:
                if k in self.workload.shared:
                    self._put(k, self.memory.get(step.blocks[k]))
        self.samples.append(samples)

    def tables(self, usual: MeasuredCosts, slower: Sequence[float]) -> Tables:
        """The shrunk medians; `slower`: how many times as long as usual each round took."""
        times = [
            {m: list[tuple[float, float]]() for m in range(1 << len(units))} for units in self.units
        ]
        for r, run in enumerate(self.samples):
            by = slower[r // RUNS]
            for x in run:
                times[x.step][x.subset].append((x.moved / by, x.computed / by))
        medians = [
            shrunk_medians([np.array(here) for here in x.values()], self._summed(t, usual))
            for t, x in enumerate(times)
        ]
        steps = tuple(
            Subsets(units, *(tuple(column.tolist()) for column in here.T)) if tabled else None
            for units, here, tabled in zip(self.units, medians, self.tabled, strict=True)
        )
        fewest = min(len(here) for x in times for here in x.values())
        return Tables(steps, fewest).scaled(*_levels(medians, usual))

    def _summed(self, step: int, prices: MeasuredCosts) -> Floats:
        """[subsets, 2]: the seconds of moving and computing if they are sums."""
        here, rows = uses(self.workload, step), list[tuple[float, float]]()
        for subset in range(1 << len(self.units[step])):
            pairs = zip(here, self._inside(step, subset), strict=True)
            moves = [(len(self.blocks[k]), out) for (k, out), inside in pairs if not inside]
            rows.append((sum(prices.moves[x] for x in moves), prices.instructions[step]))
        return np.array(rows)

    def _inside(self, step: int, subset: int) -> list[bool]:
        """Mark the instruction's buffers that are in fast memory."""
        fast = {i for k, unit in enumerate(self.units[step]) if subset >> k & 1 for i in unit}
        return [i in fast for i in range(len(uses(self.workload, step)))]

    def _step(self, time: int, subset: int) -> WorkloadStep:
        pairs = zip(uses(self.workload, time), self._inside(time, subset), strict=True)
        outside = dict(use for use, inside in pairs if not inside)
        at, _ = addresses(self.workload, outside)
        step = WorkloadStep(self.workload.name, self.workload.operations[time])
        blocks = {k: self.blocks[k] for k in (*step.operation.reads, *step.operation.writes)}
        for k, out in outside.items():
            blocks[k] = self.bounce[at[k] : at[k] + len(self.blocks[k])]
            (step.writes if out else step.reads).append((blocks[k], self.slow_addresses[k]))
        step.bind(self.workload, self.memory, blocks)
        return step

    def _put(self, tensor: int, value: Bytes) -> None:
        """Write a value to both fast and slow memory."""
        self.memory.put(value, self.blocks[tensor])
        if tensor in self.slow_addresses:
            self.slow.write(self.blocks[tensor], self.slow_addresses[tensor])


def _levels(medians: Sequence[Floats], usual: MeasuredCosts) -> tuple[float, float]:
    """Return factors of moving and computing with which the program takes as long as the gauge
    says, both with everything in fast memory and with everything in slow memory."""
    fast = sum(float(x[-1, 1]) for x in medians)
    moved, computed = (sum(float(x[0, column]) for x in medians) for column in (0, 1))
    computing = sum(usual.instructions) / fast if fast > 0 else 1.0
    moving = (usual.all_slow - computing * computed) / moved if moved > 0 else 1.0

    return max(0.0, moving), computing
