"""Workload → problem: its buffers, and where its tensors are in the file.

Prices are an argument: measured ones come from `costs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from recurra.mapping.execute.memories import whole_pages
from recurra.mapping.execute.tables import Tables
from recurra.mapping.execute.workload import Workload
from recurra.storage.mapping_problem import Buffer, Instruction, Latency, Problem, Roofline

Use = tuple[int, bool]  # a tensor, and if the instruction writes it


class InstructionPrices(Protocol):
    """Picoseconds of an instruction with everything in fast memory, and of moving bytes."""

    def computing(self, step: int) -> int:
        """The instruction of a step."""
        ...

    def moving(self, nbytes: int, *, out: bool) -> int:
        """The time of moving by an instruction that waits for it: out of RAM, or into it."""
        ...

    def copying(self, nbytes: int, *, out: bool) -> int:
        """The time of moving by the copy engine, beside instructions."""
        ...


def uses(workload: Workload, step: int) -> list[Use]:
    """The placed tensors that an instruction uses: its buffers, in their order."""
    x = workload.operations[step]
    reads = dict.fromkeys(k for k in x.reads if workload.placed(k))
    return [(k, False) for k in reads] + [(k, True) for k in x.writes if workload.placed(k)]


def slots(workload: Workload) -> tuple[dict[int, int], int]:
    """The place of each placed tensor in the file, and the file's size."""
    at: dict[int, int] = {}
    end = 0
    for k, x in enumerate(workload.tensors):
        if workload.placed(k):
            first = workload.storage[k]
            if first not in at:
                at[first], end = end, end + whole_pages(x.nbytes)
            at[k] = at[first]
    return at, end


def problem_of(
    workload: Workload,
    fast_size: int,
    prices: InstructionPrices,
    tables: Tables | None = None,
) -> Problem:
    """The problem whose answers `Execution` runs.

    An instruction reads what is not in fast memory before it computes, and writes it afterwards:
    the disk is idle while it computes, and without tables, latencies add up. What holds does not
    depend on tables, only what is gained.
    """
    storage = workload.storage
    shared = sorted({first for k, first in enumerate(storage) if k != first})
    groups = {first: k for k, first in enumerate(shared)}
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    for t, x in enumerate(workload.operations):
        here = [(k, out, whole_pages(workload.tensors[k].nbytes)) for k, out in uses(workload, t)]
        slow = tuple(prices.moving(n, out=out) for _, out, n in here)
        cost = Roofline(0, slow, (0,) * len(slow), rest=prices.computing(t))
        table = None if tables is None else tables.steps[t]
        cost = cost if table is None else table.cost()
        instructions.append(Instruction(x.name, prices.computing(t), cost))
        for i, (k, out, n) in enumerate(here):
            lives = (workload.made.get(k, -1), workload.last[k])
            demand, group = prices.copying(n, out=out), groups.get(storage[k])
            gain = _alone(cost, i, len(here))
            buffers.append(Buffer(n, out, t, k, group, lives, demand, gain))
    return Problem(workload.name, fast_size, tuple(instructions), tuple(buffers))


def _alone(cost: Roofline | Latency, buffer: int, count: int) -> int:
    """The gain of an instruction if this buffer alone is in fast memory."""
    return cost.latency([False] * count) - cost.latency([i == buffer for i in range(count)])


def bounce_places(
    workload: Workload, step: int, first: int, inside: Sequence[bool]
) -> dict[int, int]:
    """The places in the bounce buffer of an instruction's tensors outside fast memory.

    They are by storage, and under -1 is the end of them; `first` is its first buffer.
    """
    at: dict[int, int] = {}
    end = 0
    for i, (k, _) in enumerate(uses(workload, step), first):
        if not inside[i] and workload.storage[k] not in at:
            at[workload.storage[k]] = end
            end += whole_pages(workload.tensors[k].nbytes)
    return {**at, -1: end}
