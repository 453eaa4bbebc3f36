"""Problem → error: which two of its facts disagree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from recurra.storage.mapping_problem import VARIED, Buffer, Problem, ProblemError, Roofline, Table


def check(problem: Problem) -> None:
    """Raises `ProblemError` for the first contradiction."""
    if not problem.instructions or not problem.buffers:
        what = "instructions" if not problem.instructions else "buffers"
        raise ProblemError(
            f"{problem.name}: the program is empty",
            facts=f"it has no {what}, so there is nothing to place",
        )
    if problem.fast_size < 0:
        raise ProblemError(f"{problem.name}: fast_size is negative: {problem.fast_size}")
    for i in range(len(problem.buffers)):
        _buffer(problem, i)
    _order(problem)
    _tensors(problem)
    _groups(problem)
    for t in range(problem.steps):
        _instruction(problem, t)


def named(index: int, buffer: Buffer) -> str:
    """How messages call a buffer."""
    kind = "output" if buffer.is_output else "operand"
    return f"buffer {index} (tensor {buffer.tensor_id}, {kind} at step {buffer.target_time})"


def _buffer(problem: Problem, index: int) -> None:
    b, steps = problem.buffers[index], problem.steps
    who, (first, last) = f"{problem.name}: {named(index, b)}", b.live_range
    for field, value, least in (("size", b.size, 1), ("demand", b.demand, 0)):
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


def _order(problem: Problem) -> None:
    keys = [(b.target_time, b.is_output) for b in problem.buffers]
    for i, (a, b) in enumerate(itertools.pairwise(keys), 1):
        if b < a:
            raise ProblemError(
                f"{problem.name}: {named(i, problem.buffers[i])} stands too late",
                facts=f"it follows {named(i - 1, problem.buffers[i - 1])}",
                hint="buffers stand in order of their steps, operands before outputs",
            )


def _tensors(problem: Problem) -> None:
    seen: dict[int, int] = {}
    written: dict[int, int] = {}
    at: set[tuple[int, int]] = set()
    for i, b in enumerate(problem.buffers):
        who = f"{problem.name}: {named(i, b)}"
        j = seen.setdefault(b.tensor_id, i)
        a = problem.buffers[j]
        for field in ("size", "alias_id", "live_range"):
            x, y = getattr(a, field), getattr(b, field)
            if x != y:
                raise ProblemError(
                    f"{who}: another {field} than the tensor's first use",
                    facts=f"{y} here, {x} for {named(j, a)}",
                )
        if (b.target_time, b.tensor_id) in at:
            raise ProblemError(f"{who}: used twice by one instruction", hint="merge the two uses")
        at.add((b.target_time, b.tensor_id))
        if b.is_output:
            written[b.tensor_id] = i
        elif b.live_range[0] >= 0 and b.tensor_id not in written:
            raise ProblemError(
                f"{who}: read before it is written",
                facts=f"its live range starts at {b.live_range[0]}, and no output comes before",
                hint="a tensor that exists before the program lives from -1; a cycle has no order",
            )


def _groups(problem: Problem) -> None:
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


def _instruction(problem: Problem, step: int) -> None:
    x, uses = problem.instructions[step], problem.uses[step]
    who = f"{problem.name}: instruction {step} ({x.name})"
    for what, value in _quantities(x.supply, x.cost):
        if value < 0:
            raise ProblemError(f"{who}: {what} is {value}", facts="it must not be negative")
    if isinstance(x.cost, Roofline):
        _roofline(who, x.cost, len(uses))
    if isinstance(x.cost, Table):
        _table(who, x.cost, len(uses))
    if x.cost is None:
        return
    none = x.cost.latency([False] * len(uses))
    for k, i in enumerate(uses):
        alone = none - x.cost.latency([j == k for j in range(len(uses))])
        if alone != problem.buffers[i].benefit:
            raise ProblemError(
                f"{problem.name}: {named(i, problem.buffers[i])}: benefit and cost disagree",
                facts=f"the benefit is {problem.buffers[i].benefit} ps, "
                f"but by its cost {x.name} gains {alone} ps",
            )


def _quantities(supply: int, cost: Roofline | Table | None) -> Iterator[tuple[str, int]]:
    yield "supply", supply
    if isinstance(cost, Roofline):
        yield from (("compute", cost.compute), ("rest", cost.rest), ("overhead", cost.overhead))
        yield "times", cost.times
        yield from (("fast", v) for v in cost.fast)
    elif isinstance(cost, Table):
        yield from (("latency", v) for v in cost.latencies)


def _roofline(who: str, cost: Roofline, uses: int) -> None:
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


def _table(who: str, cost: Table, uses: int) -> None:
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
