"""Problem → struct of arrays, the form in which both engines read it.

`max(compute, traffic)` covers rooflines and plain benefits alike: the latter have compute -2^60.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recurra.storage.mapping_problem import Instruction, Latency, Problem, ProblemError, Roofline

NEVER = 2**30  # a step after every program
_LEAST = -(2**60)

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FlatProblem:
    """Arrays over buffers [N], steps [T], tensors [X] and storages [S]; all int64."""

    problem: Problem
    size: Ints  # [N]
    output: Ints  # [N] 0 or 1
    at: Ints  # [N] target time
    tensor: Ints  # [N] dense
    storage: Ints  # [N] dense, in order of first use
    life_end: Ints  # [N] the last step of the live range, at most T - 1
    live_out: Ints  # [N] 1 if the tensor is read after the program
    demand: Ints  # [N]
    evict_by: Ints  # [N] the last step in which an output may leave before it is overwritten
    next_use: Ints  # [N] the step of the tensor's next buffer, or its own
    gain: Ints  # [N] less traffic, if inside; 0 under a table
    bit: Ints  # [N] its bit in the table's index, or -1
    live_in: Ints  # [X] 1 if the tensor is in slow memory from the start
    grouped: Ints  # [S] 1 for alias groups
    member_at: Ints  # [S + 1] where a storage's buffers start in `members`
    members: Ints  # [N] buffers by storage
    supply: Ints  # [T]
    compute: Ints  # [T]
    traffic: Ints  # [T] with everything in slow memory
    times: Ints  # [T]
    table_at: Ints  # [T] where an instruction's latencies start in `tables`, or -1
    tables: Ints
    counts: Ints = field(init=False)  # N, T, X, S, fast_size

    def __post_init__(self) -> None:
        n = (len(self.size), len(self.supply), len(self.live_in), len(self.grouped))
        object.__setattr__(self, "counts", _array([*n, self.problem.fast_size]))

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """The arrays, in the order in which the native engine takes them."""
        return tuple(v for v in vars(self).values() if isinstance(v, np.ndarray))


def flat(problem: Problem) -> FlatProblem:
    """Return the arrays of a problem; raises `ProblemError` for amounts above 2^60."""
    _check(problem)
    buffers, steps = problem.buffers, problem.steps
    tensors = {x: k for k, x in enumerate(dict.fromkeys(b.tensor_id for b in buffers))}
    storage = [0] * len(buffers)
    for s, members in enumerate(problem.storages):
        for i in members:
            storage[i] = s
    live_in = [0] * len(tensors)
    for b in buffers:
        live_in[tensors[b.tensor_id]] = int(b.live_range[0] < 0)

    starts = np.cumsum([0, *(len(m) for m in problem.storages)])
    return FlatProblem(
        problem=problem,
        size=_array([b.size for b in buffers]),
        output=_array([b.is_output for b in buffers]),
        at=_array([b.target_time for b in buffers]),
        tensor=_array([tensors[b.tensor_id] for b in buffers]),
        storage=_array(storage),
        life_end=_array([min(b.live_range[1], steps - 1) for b in buffers]),
        live_out=_array([b.live_range[1] >= steps for b in buffers]),
        demand=_array([b.demand for b in buffers]),
        **_neighbors(problem),
        live_in=_array(live_in),
        grouped=_array([buffers[m[0]].alias_id is not None for m in problem.storages]),
        member_at=_array(starts),
        members=_array([i for m in problem.storages for i in m]),
        supply=_array([x.supply for x in problem.instructions]),
        **_costs(problem),
    )


def _check(problem: Problem) -> None:
    """Require that the sum of two amounts fits in 64 bits."""
    amounts = {
        "fast memory": problem.fast_size,
        "the largest buffer": max((b.size for b in problem.buffers), default=0),
        "the time for copies": sum(x.supply for x in problem.instructions),
        "the time that copies take": sum(b.demand for b in problem.buffers),
        "the time of all": sum(_longest(x) for x in problem.instructions),
        "all that there is to gain": sum(abs(b.benefit) for b in problem.buffers),
    }
    for what, amount in amounts.items():
        if amount > -_LEAST:
            raise ProblemError(
                f"{problem.name}: {what} is {amount:,}", facts="2^60 bytes or picoseconds are most"
            )


def _longest(instruction: Instruction) -> int:
    c = instruction.cost
    if isinstance(c, Roofline):
        return c.times * (c.overhead + c.compute + c.rest + sum(c.slow) + sum(c.fast))
    return max(map(abs, c.latencies), default=0) if c else 0


def _array(values: Sequence[int] | np.ndarray) -> Ints:
    return np.array(values, np.int64)


def _neighbors(problem: Problem) -> dict[str, Ints]:
    """Return the last step before the next value overwrites a storage, and a tensor's next use."""
    buffers = problem.buffers
    evict_by = [problem.steps - 1] * len(buffers)
    next_use = [b.target_time for b in buffers]
    for members in problem.storages:
        written = NEVER
        after: dict[int, int] = {}
        for i in reversed(members):
            b = buffers[i]
            evict_by[i] = min(evict_by[i], written - 1)
            next_use[i] = after.get(b.tensor_id, b.target_time)
            after[b.tensor_id] = b.target_time
            if b.is_output:
                written = b.target_time
    return {"evict_by": _array(evict_by), "next_use": _array(next_use)}


def _costs(problem: Problem) -> dict[str, Ints]:
    gain = [b.benefit for b in problem.buffers]
    bit = [-1] * len(gain)
    compute, traffic, times, table_at = ([0] * problem.steps for _ in range(4))
    tables: list[int] = []
    for t, (x, uses) in enumerate(zip(problem.instructions, problem.uses, strict=True)):
        compute[t], times[t], table_at[t] = _LEAST, 1, -1
        if isinstance(x.cost, Roofline):
            compute[t], times[t] = x.cost.compute, x.cost.times
            traffic[t] = x.cost.rest + sum(x.cost.slow)
            for k, i in enumerate(uses):
                gain[i] = x.cost.slow[k] - x.cost.fast[k]
        elif isinstance(x.cost, Latency):
            table_at[t] = len(tables)
            tables.extend(x.cost.latencies)
            for i in uses:
                gain[i] = 0
            for k, j in enumerate(x.cost.varied):
                bit[uses[j]] = k
    columns = {"gain": gain, "bit": bit, "compute": compute, "traffic": traffic, "times": times}
    return {k: _array(v) for k, v in {**columns, "table_at": table_at, "tables": tables}.items()}
