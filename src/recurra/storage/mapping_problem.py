"""The memory-mapping problem and its solution: which uses of which tensors are in fast memory.

A program is a sequence of instructions; step t runs instruction t. Every use of a tensor by an
instruction is a buffer. A solution gives some buffers a range of addresses of the fast memory and
an interval of steps. Sizes are bytes and times are picoseconds, both integers: nothing is rounded,
and undoing a move restores the state exactly.

"Optimizing Memory Mapping Using Deep Reinforcement Learning" (arXiv 2305.07440), section 4.1,
table 1 and appendix A. What the paper leaves open is settled in docs/mapping.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from recurra.errors import RecurraError
from recurra.report.html import table_html

VARIED = 8  # latencies are measured for all subsets of at most so many buffers: appendix A


class ProblemError(RecurraError):
    """A memory-mapping problem, or an answer to one, that contradicts itself or its format."""


@dataclass(frozen=True)
class Buffer:
    """One use of a tensor by one instruction: table 1.

    `live_range` is the first and last step at which the value exists: -1 if it exists before the
    program, the number of steps if it is needed after it. Buffers with the same `alias_id` share
    their place, in fast memory or out of it. `benefit` is the time that the instruction gains if
    only this one of its buffers is in fast memory, `demand` the time of copying the buffer.
    """

    size: int
    is_output: bool
    target_time: int
    tensor_id: int
    alias_id: int | None
    live_range: tuple[int, int]
    demand: int
    benefit: int

    def __post_init__(self) -> None:
        _to_tuples(self, "live_range")
        if len(self.live_range) != 2:
            raise ProblemError(
                f"Buffer: live_range is {self.live_range}",
                facts="it must be two whole numbers, the first and the last step",
                hint=f"live_range=({self.target_time}, {self.target_time})",
            )


@dataclass(frozen=True)
class Roofline:
    """Latency = times · (overhead + max(compute, rest + traffic of the buffers)).

    `slow` and `fast` are the times of moving each of the instruction's buffers, in their order.
    """

    compute: int
    slow: tuple[int, ...]
    fast: tuple[int, ...]
    rest: int = 0
    overhead: int = 0
    times: int = 1

    def __post_init__(self) -> None:
        _to_tuples(self, "slow", "fast")

    def latency(self, inside: Sequence[bool]) -> int:
        """Picoseconds with the buffers marked in `inside` in fast memory."""
        moved = sum(f if x else s for s, f, x in zip(self.slow, self.fast, inside, strict=True))
        return self.times * (self.overhead + max(self.compute, self.rest + moved))


@dataclass(frozen=True)
class Latency:
    """Measured latencies: `latencies[m]` if buffer `varied[k]` is inside for each bit k of m.

    `varied` are positions among the instruction's buffers, at most eight; others have no effect.
    """

    varied: tuple[int, ...]
    latencies: tuple[int, ...]

    def __post_init__(self) -> None:
        _to_tuples(self, "varied", "latencies")

    def latency(self, inside: Sequence[bool]) -> int:
        """Picoseconds with the buffers marked in `inside` in fast memory."""
        return self.latencies[sum(1 << k for k, b in enumerate(self.varied) if inside[b])]


@dataclass(frozen=True)
class Instruction:
    """The instruction of one step; without a cost, the benefits of its buffers add up.

    `supply` is the time that its execution leaves for copies.
    """

    name: str
    supply: int
    cost: Roofline | Latency | None = None


@dataclass(frozen=True)
class Problem:
    """Instructions, their buffers in order of time (operands before outputs), the fast memory.

    Raises `ProblemError` if the parts contradict each other.
    """

    name: str
    fast_size: int
    instructions: tuple[Instruction, ...]
    buffers: tuple[Buffer, ...]

    def __post_init__(self) -> None:
        for field, kind in (("instructions", Instruction), ("buffers", Buffer)):
            parts = _tuple_of(self.name, field, kind, getattr(self, field))
            object.__setattr__(self, field, parts)
        check_mapping_problem(self)

    @property
    def steps(self) -> int:
        return len(self.instructions)

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """The buffers of each instruction, by index."""
        uses: list[list[int]] = [[] for _ in self.instructions]
        for i, b in enumerate(self.buffers):
            uses[b.target_time].append(i)
        return tuple(map(tuple, uses))

    @cached_property
    def storages(self) -> tuple[tuple[int, ...], ...]:
        """The buffers that share a place: those of an alias group, or of a tensor without one."""
        groups: dict[tuple[bool, int], list[int]] = {}
        for i, b in enumerate(self.buffers):
            key = (False, b.tensor_id) if b.alias_id is None else (True, b.alias_id)
            groups.setdefault(key, []).append(i)
        return tuple(map(tuple, groups.values()))

    def latency(self, step: int, inside: Sequence[bool]) -> int:
        """Picoseconds of an instruction with its buffers marked in `inside` in fast memory.

        Without a cost the latency is relative: 0 with all buffers in slow memory.
        """
        cost = self.instructions[step].cost
        if cost is not None:
            return cost.latency(inside)
        uses = self.uses[step]
        return -sum(self.buffers[i].benefit for i, x in zip(uses, inside, strict=True) if x)

    def reward(self, inside: Sequence[bool]) -> int:
        """The gain, in picoseconds, over a program whose buffers are all in slow memory."""
        return sum(
            self.latency(t, [False] * len(uses)) - self.latency(t, [inside[i] for i in uses])
            for t, uses in enumerate(self.uses)
        )

    @cached_property
    def total(self) -> int:
        """The reward of a fast memory that holds everything."""
        return self.reward([True] * len(self.buffers))

    def __str__(self) -> str:
        grouped = {b.alias_id for b in self.buffers} - {None}
        return (
            f"{self.name}: {self.steps} instructions, {len(self.buffers)} buffers of "
            f"{len({b.tensor_id for b in self.buffers})} tensors, {len(grouped)} alias groups, "
            f"{self.fast_size:,} B of fast memory, at most {self.total / 1e6:,.3f} µs to gain"
        )

    def _repr_html_(self) -> str:
        rows = [
            {
                "step": b.target_time,
                "instruction": self.instructions[b.target_time].name,
                "tensor": b.tensor_id,
                "use": "output" if b.is_output else "operand",
                "bytes": b.size,
                "benefit, µs": b.benefit / 1e6,
            }
            for b in self.buffers[:200]
        ]
        return f"<p>{self}</p>" + table_html(rows)


class Placement(NamedTuple):
    """A buffer in fast memory: its address, its first and last step, and whether it is copied.

    A copied operand arrives in steps `start` to `target_time - 1`; a copied output leaves in steps
    `target_time + 1` to `end`.
    """

    offset: int
    start: int
    end: int
    copied: bool


@dataclass(frozen=True)
class Solution:
    """One placement per buffer, None for a buffer in slow memory."""

    placements: tuple[Placement | None, ...]

    def __post_init__(self) -> None:
        _to_tuples(self, "placements")
        parsed = tuple(map(_placement_of, range(len(self.placements)), self.placements))
        object.__setattr__(self, "placements", parsed)

    def reward(self, problem: Problem) -> int:
        """Picoseconds gained over all buffers in slow memory."""
        return problem.reward([p is not None for p in self.placements])

    def __str__(self) -> str:
        inside = [p for p in self.placements if p is not None]
        copied = sum(p.copied for p in inside)
        return f"{len(inside)} of {len(self.placements)} buffers in fast memory, {copied} copied"


def _placement_of(index: int, value: Any) -> Placement | None:
    """Convert a sequence of four parts to a placement."""
    if value is None or isinstance(value, Placement):
        return value
    try:
        return Placement(*value)
    except TypeError:
        raise ProblemError(
            f"Solution: placements[{index}] is {value!r}",
            facts="it must be None, or a placement of offset, start, end and copied",
            hint="Placement(0, 0, 2, copied=False)",
        ) from None


def nothing(problem: Problem) -> Solution:
    """The solution that is always valid: every buffer in slow memory."""
    return Solution((None,) * len(problem.buffers))


def copy_steps(buffer: Buffer, placement: Placement) -> range:
    """The steps in which a placed buffer is copied: copy(b) of appendix A."""
    if not placement.copied:
        return range(0)
    if buffer.is_output:
        return range(buffer.target_time + 1, placement.end + 1)
    return range(placement.start, buffer.target_time)


def packing(
    name: str,
    rows: Sequence[tuple[int, int, int]],
    fast_size: int,
    steps: Sequence[tuple[str, int]] | None = None,
) -> Problem:
    """The problem of placing all buffers without copies: rows of (first step, last step, bytes).

    Each buffer gains 1 ps, so the reward counts the placed ones. A copy takes longer than the
    program, so nothing is copied. `steps` are their names and durations.
    """
    count = 2 + max((last for _, last, _ in rows), default=-2)  # values die with their last step
    durations = list(steps or [(str(t), 1) for t in range(count)])
    longer = 1 + sum(time for _, time in durations)
    return Problem(
        name,
        fast_size,
        tuple(Instruction(x, time) for x, time in durations),
        tuple(
            Buffer(size, True, first, i, None, (first, last), longer, 1)
            for i, (first, last, size) in sorted(enumerate(rows), key=lambda row: row[1][0])
        ),
    )


def check_mapping_problem(problem: Problem) -> None:
    """Raise `ProblemError` for the first contradiction."""
    if not problem.instructions or not problem.buffers:
        what = "instructions" if not problem.instructions else "buffers"
        raise ProblemError(
            f"{problem.name}: the program is empty",
            facts=f"it has no {what}, so there is nothing to place",
        )
    _expect_whole(problem.name, "fast_size", problem.fast_size)
    if problem.fast_size < 0:
        raise ProblemError(f"{problem.name}: fast_size is negative: {problem.fast_size}")
    for i in range(len(problem.buffers)):
        _check_buffer(problem, i)
    _check_order(problem)
    _check_tensors(problem)
    _check_alias_groups(problem)
    for t in range(problem.steps):
        _check_instruction(problem, t)


def _tuple_of(who: str, field: str, kind: type, parts: Sequence[Any]) -> tuple[Any, ...]:
    """Return the parts as a tuple. Raises ProblemError if one is of another kind."""
    parts = _to_tuple(who, field, parts)
    for k, part in enumerate(parts):
        if not isinstance(part, kind):
            raise ProblemError(
                f"{who}: {field}[{k}] is {part!r}", facts=f"it must be {kind.__name__}(..)"
            )
    return parts


def _to_tuple(who: str, field: str, value: Any) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError:
        raise ProblemError(f"{who}: {field} is {value!r}, no sequence") from None


def _to_tuples(part: object, *fields: str) -> None:
    """Make sequences tuples, so that their dataclass can be hashed."""
    for field in fields:
        value = _to_tuple(type(part).__name__, field, getattr(part, field))
        object.__setattr__(part, field, value)


def _expect_whole(who: str, field: str, value: Any) -> None:
    """Raise ProblemError if an amount, of bytes or picoseconds, is no whole number."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        near = isinstance(value, float) and math.isfinite(value)
        hint = f"{field}={math.ceil(value)}" if near else ""
        raise ProblemError(f"{who}: {field} is {value!r}, no whole number", hint=hint)


def named(index: int, buffer: Buffer) -> str:
    """The name of a buffer in messages."""
    kind = "output" if buffer.is_output else "operand"
    return f"buffer {index} (tensor {buffer.tensor_id}, {kind} at step {buffer.target_time})"


def _check_buffer(problem: Problem, index: int) -> None:
    b, steps = problem.buffers[index], problem.steps
    who, (first, last) = f"{problem.name}: {named(index, b)}", b.live_range
    whole = {"target_time": b.target_time, "tensor_id": b.tensor_id, "benefit": b.benefit}
    for field, value in (*whole.items(), *(("live_range", end) for end in b.live_range)):
        _expect_whole(who, field, value)
    for field, value, least in (("size", b.size, 1), ("demand", b.demand, 0)):
        _expect_whole(who, field, value)
        if value < least:
            raise ProblemError(f"{who}: {field} is {value}", facts=f"it must be at least {least}")
    if not 0 <= b.target_time < steps:
        raise ProblemError(
            f"{who}: there is no such step", facts=f"the program has steps 0 to {steps - 1}"
        )
    if first > last:
        raise ProblemError(f"{who}: the live range ends before it starts: {first}..{last}")
    if not -1 <= first <= b.target_time <= last <= steps:
        raise ProblemError(
            f"{who}: used outside the live range {first}..{last}",
            facts=f"a range lies within -1..{steps} and holds the step of each use",
        )
    if b.is_output and first != b.target_time:
        raise ProblemError(
            f"{who}: the value exists before it is computed",
            facts=f"its live range starts at {first}, its instruction runs at {b.target_time}",
            hint="what is updated in place is another tensor of the same alias group",
        )


def _check_order(problem: Problem) -> None:
    keys = [(b.target_time, b.is_output) for b in problem.buffers]
    for i, (a, b) in enumerate(itertools.pairwise(keys), 1):
        if b < a:
            raise ProblemError(
                f"{problem.name}: {named(i, problem.buffers[i])} stands too late",
                facts=f"it follows {named(i - 1, problem.buffers[i - 1])}",
                hint="buffers stand in order of their steps, operands before outputs",
            )


def _check_tensors(problem: Problem) -> None:
    first_use: dict[int, int] = {}
    written: set[int] = set()
    used: set[tuple[int, int]] = set()
    for i, b in enumerate(problem.buffers):
        who = f"{problem.name}: {named(i, b)}"
        j = first_use.setdefault(b.tensor_id, i)
        a = problem.buffers[j]
        for field in ("size", "alias_id", "live_range"):
            x, y = getattr(a, field), getattr(b, field)
            if x != y:
                raise ProblemError(
                    f"{who}: another {field} than the tensor's first use",
                    facts=f"{y} here, {x} for {named(j, a)}",
                )
        if (b.target_time, b.tensor_id) in used:
            raise ProblemError(f"{who}: used twice by one instruction", hint="merge the two uses")
        used.add((b.target_time, b.tensor_id))
        if b.is_output:
            written.add(b.tensor_id)
        elif b.live_range[0] >= 0 and b.tensor_id not in written:
            raise ProblemError(
                f"{who}: read before it is written",
                facts=f"its live range starts at {b.live_range[0]}, and no output comes before",
                hint="a tensor that exists before the program lives from -1; a cycle has no order",
            )


def _check_alias_groups(problem: Problem) -> None:
    groups: dict[int, dict[int, int]] = {}  # alias group -> tensor -> its first use
    for i, b in enumerate(problem.buffers):
        if b.alias_id is not None:
            groups.setdefault(b.alias_id, {}).setdefault(b.tensor_id, i)
    for group, tensors in groups.items():
        members = sorted(tensors.values(), key=lambda i: problem.buffers[i].live_range)
        for i, j in itertools.pairwise(members):
            a, b = problem.buffers[i], problem.buffers[j]
            who = f"{problem.name}: alias group {group}"
            if a.size != b.size:
                raise ProblemError(
                    f"{who} has tensors of different sizes",
                    facts=f"{a.size} B of {named(i, a)}, {b.size} B of {named(j, b)}",
                )
            if b.live_range[0] < a.live_range[1]:
                raise ProblemError(
                    f"{who} has two live values in one place",
                    facts=f"tensor {a.tensor_id} lives {a.live_range[0]}..{a.live_range[1]}, "
                    f"tensor {b.tensor_id} {b.live_range[0]}..{b.live_range[1]}",
                )


def _check_instruction(problem: Problem, step: int) -> None:
    x, uses = problem.instructions[step], problem.uses[step]
    who = f"{problem.name}: instruction {step} ({x.name})"
    for what, value in _quantities(x.supply, x.cost):
        _expect_whole(who, what, value)
        if value < 0:
            raise ProblemError(f"{who}: {what} is {value}", facts="it must not be negative")
    if isinstance(x.cost, Roofline):
        _check_roofline(who, x.cost, len(uses))
    if isinstance(x.cost, Latency):
        _check_latency(who, x.cost, len(uses))
    if x.cost is None:
        return
    slowest = x.cost.latency([False] * len(uses))
    for k, i in enumerate(uses):
        alone = slowest - x.cost.latency([j == k for j in range(len(uses))])
        if alone != problem.buffers[i].benefit:
            raise ProblemError(
                f"{problem.name}: {named(i, problem.buffers[i])}: benefit and cost disagree",
                facts=f"the benefit is {problem.buffers[i].benefit} ps, "
                f"but by its cost {x.name} gains {alone} ps",
            )


def _quantities(supply: int, cost: Roofline | Latency | None) -> Iterator[tuple[str, int]]:
    yield "supply", supply
    if isinstance(cost, Roofline):
        for field in ("compute", "rest", "overhead", "times"):
            yield field, getattr(cost, field)
        yield from (("fast", v) for v in cost.fast)
    elif isinstance(cost, Latency):
        yield from (("latency", v) for v in cost.latencies)


def _check_roofline(who: str, cost: Roofline, uses: int) -> None:
    for field, values in (("slow", cost.slow), ("fast", cost.fast)):
        if len(values) != uses:
            raise ProblemError(
                f"{who}: {len(values)} times of {field} memory for {uses} buffers",
                hint="one per buffer, in the order of the buffers",
            )
    for k, (slow, fast) in enumerate(zip(cost.slow, cost.fast, strict=True)):
        if slow < fast:
            raise ProblemError(
                f"{who}: its buffer {k} is slower in fast memory",
                facts=f"{fast} ps in fast memory, {slow} ps in slow memory",
            )


def _check_latency(who: str, cost: Latency, uses: int) -> None:
    varied = cost.varied
    if len(varied) > VARIED or len(set(varied)) < len(varied):
        raise ProblemError(f"{who}: varies {varied}", facts=f"at most {VARIED} different buffers")
    if any(not 0 <= k < uses for k in varied):
        raise ProblemError(f"{who}: varies {varied}", facts=f"it has {uses} buffers")
    if len(cost.latencies) != 1 << len(varied):
        raise ProblemError(
            f"{who}: {len(cost.latencies)} latencies",
            facts=f"{len(varied)} buffers have {1 << len(varied)} subsets",
        )
