"""Workload → mapping problem: its buffers, and the addresses of its tensors.

Prices are an argument: measured ones come from `cost_measurement.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from recurra.mapping.execute.latency_tables import Tables
from recurra.mapping.execute.memories import whole_pages
from recurra.mapping.execute.workload import Workload
from recurra.storage.mapping_problem import Buffer, Instruction, Problem, Roofline

Use = tuple[int, bool]  # a tensor, and whether the instruction writes it


class InstructionPrices(Protocol):
    """Picoseconds of an instruction with everything in fast memory, and of moving bytes."""

    def computing(self, step: int) -> int:
        """The instruction of a step."""
        ...

    def moving(self, nbytes: int, *, out: bool) -> int:
        """A move that an instruction waits for: out of fast memory, or into it."""
        ...

    def copying(self, nbytes: int, *, out: bool) -> int:
        """A move by the copy engine, beside instructions."""
        ...


def uses(workload: Workload, step: int) -> list[Use]:
    """Return the placed tensors that an instruction uses: its buffers, in their order."""
    x = workload.operations[step]
    reads = dict.fromkeys(k for k in x.reads if workload.is_placed(k))
    return [(k, False) for k in reads] + [(k, True) for k in x.writes if workload.is_placed(k)]


def addresses(workload: Workload, tensors: Iterable[int]) -> tuple[dict[int, int], int]:
    """Assign an address to each of these tensors, one per storage; return the end, too."""
    by_storage: dict[int, int] = {}
    by_tensor: dict[int, int] = {}
    end = 0
    for k in tensors:
        first = workload.storage[k]
        if first not in by_storage:
            by_storage[first], end = end, end + whole_pages(workload.tensors[k].nbytes)
        by_tensor[k] = by_storage[first]
    return by_tensor, end


def slow_addresses(workload: Workload) -> tuple[dict[int, int], int]:
    """Return the address of each placed tensor in slow memory, and the size of it."""
    return addresses(workload, filter(workload.is_placed, range(len(workload.tensors))))


def problem_of(
    workload: Workload,
    fast_size: int,
    prices: InstructionPrices,
    tables: Tables | None = None,
) -> Problem:
    """Return the problem whose solutions `PreparedWorkload` runs.

    An instruction reads operands outside fast memory before it computes, and writes outputs
    afterwards: the disk is idle while it computes, and without tables, latencies add up. Which
    mappings are valid does not depend on tables, only their reward does.
    """
    storage = workload.storage
    shared = sorted({first for k, first in enumerate(storage) if k != first})
    groups = {first: k for k, first in enumerate(shared)}
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    for t, x in enumerate(workload.operations):
        here = [(k, out, whole_pages(workload.tensors[k].nbytes)) for k, out in uses(workload, t)]
        slow = tuple(prices.moving(n, out=out) for _, out, n in here)
        table = None if tables is None else tables.steps[t]
        sums = Roofline(0, slow, (0,) * len(slow), rest=prices.computing(t))
        cost = sums if table is None else table.cost()
        instructions.append(Instruction(x.name, prices.computing(t), cost))
        all_slow = cost.latency([False] * len(here))
        for i, (k, out, n) in enumerate(here):
            lives = (workload.producer.get(k, -1), workload.last[k])
            demand, group = prices.copying(n, out=out), groups.get(storage[k])
            gain = all_slow - cost.latency([j == i for j in range(len(here))])
            buffers.append(Buffer(n, out, t, k, group, lives, demand, gain))
    return Problem(workload.name, fast_size, tuple(instructions), tuple(buffers))
