"""Check a solution against every constraint: naive, and without a line shared with the solvers.

Every constraint has a name. Two buffers are compared pairwise, copies are served earliest deadline
first, and the addresses that hold a value are followed step by step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from recurra.storage.mapping_problem import Buffer, Placement, Problem, ProblemError, Solution

Constraint = Literal[
    "fast memory",  # addresses within it
    "target time",  # an interval of steps that holds the step of the use
    "overlap",  # no address holds two buffers at once
    "alias offset",  # equation 4: one group, one offset; all in fast memory or none
    "one copy at a time",  # equation 6
    "bandwidth",  # equation 5
    "residency",  # every value that is read is in the memory that it is read from
]


@dataclass(frozen=True)
class Violation:
    """A constraint that a solution breaks, and where."""

    constraint: Constraint
    where: str

    def __str__(self) -> str:
        return f"{self.constraint}: {self.where}"


class InvalidSolution(ProblemError):
    """A solution that breaks a constraint."""

    def __init__(self, problem: Problem, violations: list[Violation]) -> None:
        self.violations, first = violations, violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        super().__init__(f"{problem.name}: {first.constraint}{more}", facts=first.where)


def validate(problem: Problem, solution: Solution) -> int:
    """Return the reward of a valid solution in picoseconds; raises `InvalidSolution` otherwise."""
    found = violations(problem, solution)
    if found:
        raise InvalidSolution(problem, found)
    return solution.reward(problem)


def violations(problem: Problem, solution: Solution) -> list[Violation]:
    """Return all violations of a solution; takes time quadratic in the buffers."""
    if len(solution.placements) != len(problem.buffers):
        raise ProblemError(
            f"{problem.name}: the solution is of another problem",
            facts=f"it places {len(solution.placements)} buffers, there are {len(problem.buffers)}",
        )
    inside = [
        (i, problem.buffers[i], p) for i, p in enumerate(solution.placements) if p is not None
    ]
    alone = [v for x in inside for v in _alone(problem, *x)]
    if alone:  # the other checks would report nonsense
        return alone
    found = [*_overlaps(inside), *_groups(problem, solution), *_copies(problem, inside)]
    tensors: dict[int, list[int]] = {}
    written: dict[int | None, list[int]] = {}  # alias group -> the steps that write its place
    for i, b in enumerate(problem.buffers):
        tensors.setdefault(b.tensor_id, []).append(i)
        if b.is_output:
            written.setdefault(b.alias_id, []).append(b.target_time)
    for uses in tensors.values():
        found += _residency(problem, solution, uses, written)
    return found


Inside = tuple[int, Buffer, Placement]


def _alone(
    problem: Problem, index: int, buffer: Buffer, placement: Placement
) -> Iterator[Violation]:
    if placement.offset < 0 or placement.offset + buffer.size > problem.fast_size:
        yield Violation(
            "fast memory",
            f"buffer {index} takes {placement.offset}..{placement.offset + buffer.size} "
            f"of {problem.fast_size} B",
        )
    if not 0 <= placement.start <= buffer.target_time <= placement.end <= problem.steps - 1:
        yield Violation(
            "target time",
            f"buffer {index} is used at step {buffer.target_time}, "
            f"and placed at {placement.start}..{placement.end}",
        )
    used = placement.start if buffer.is_output else placement.end
    if used != buffer.target_time:
        side = "from" if buffer.is_output else "until"
        yield Violation(
            "target time",
            f"buffer {index} is placed {side} its step {buffer.target_time}, not {used}",
        )


def _share(first: Buffer, second: Buffer) -> bool:
    """Return whether the problem lets two buffers share an address."""
    if first.alias_id is None or second.alias_id is None:
        return first.tensor_id == second.tensor_id
    return first.alias_id == second.alias_id


def _overlaps(inside: list[Inside]) -> Iterator[Violation]:
    order = sorted(inside, key=lambda x: x[2].start)
    for k, (i, a, p) in enumerate(order):
        for j, b, q in order[k + 1 :]:
            if q.start > p.end:
                break
            if q.offset >= p.offset + a.size or p.offset >= q.offset + b.size:
                continue
            if not (_share(a, b) and p.offset == q.offset):
                yield Violation("overlap", f"buffers {i} and {j} share addresses at step {q.start}")


def _groups(problem: Problem, solution: Solution) -> Iterator[Violation]:
    first: dict[int, int] = {}
    for i, b in enumerate(problem.buffers):
        if b.alias_id is None:
            continue
        j = first.setdefault(b.alias_id, i)
        p, q = solution.placements[j], solution.placements[i]
        x, y = (z and z.offset for z in (p, q))
        if x != y:
            texts = ["in slow memory" if z is None else f"at {z}" for z in (x, y)]
            where = f"group {b.alias_id}: buffer {j} is {texts[0]}, buffer {i} {texts[1]}"
            yield Violation("alias offset", where)


def _during(buffer: Buffer, placement: Placement) -> tuple[int, int]:
    """Return the first and last step of a copy; the first lies after the last if there is none."""
    if not placement.copied:
        return 0, -1
    if buffer.is_output:
        return buffer.target_time + 1, placement.end
    return placement.start, buffer.target_time - 1


def _copies(problem: Problem, inside: list[Inside]) -> Iterator[Violation]:
    spans = sorted((*_during(b, p), i, b.demand) for i, b, p in inside if p.copied)
    for k, (_, last, i, _) in enumerate(spans):
        for start, end, j, _ in spans[k + 1 :]:
            if min(last, end) - start >= 1:
                where = f"buffers {i} and {j} are both copied in steps {start} and {start + 1}"
                yield Violation("one copy at a time", where)
    left = _uncopied_bytes(problem, spans)
    for start, end, i, demand in spans:
        if left[i]:
            yield Violation(
                "bandwidth",
                f"buffer {i}: {demand - left[i]} of {demand} ps of its copy fit in {start}..{end}",
            )


def _uncopied_bytes(problem: Problem, spans: list[tuple[int, int, int, int]]) -> dict[int, int]:
    """Return the time of its copy that each buffer lacks: the earliest deadline is served first."""
    left = {i: demand for _, _, i, demand in spans}
    waiting: list[list[int]] = [[] for _ in problem.instructions]
    for start, end, i, _ in sorted(spans, key=lambda s: s[1]):
        for t in range(start, end + 1):
            waiting[t].append(i)
    for t, x in enumerate(problem.instructions):
        supply = x.supply
        for i in waiting[t]:
            if supply:
                moved = min(supply, left[i])
                left[i] -= moved
                supply -= moved
    return left


def _residency(
    problem: Problem, solution: Solution, uses: list[int], written: dict[int | None, list[int]]
) -> Iterator[Violation]:
    """Follow one tensor: when it is in fast memory, and from which step on in slow memory."""
    b0 = problem.buffers[uses[0]]
    slow: int | None = -1 if b0.live_range[0] < 0 else None  # in slow memory after this step
    earlier: list[Placement] = []
    for i in uses:
        b, p = problem.buffers[i], solution.placements[i]
        if b.is_output:
            slow = b.target_time if p is None else _during(b, p)[1] if p.copied else None
            if p is not None:
                earlier.append(p)
                yield from _check_output(problem, i, p, written)
        elif p is None or p.copied:
            begin = b.target_time if p is None else _during(b, p)[0]
            if slow is None or slow >= begin:
                what = "read from" if p is None else "copied from"
                when = "never there" if slow is None else f"there after step {slow}"
                yield Violation("residency", f"buffer {i} is {what} slow memory at {begin}, {when}")
        elif not any(q.offset == p.offset and q.start <= p.start <= q.end + 1 for q in earlier):
            where = f"buffer {i} stays from step {p.start} on, where its tensor is not"
            yield Violation("residency", where)
        if p is not None and not b.is_output:
            earlier.append(p)
    if b0.live_range[1] >= problem.steps and slow is None:
        yield Violation(
            "residency", f"tensor {b0.tensor_id} is wanted after the program, in slow memory"
        )


def _check_output(
    problem: Problem, index: int, placement: Placement, written: dict[int | None, list[int]]
) -> Iterator[Violation]:
    """Check that an output stays for its life, or has been copied out before it is overwritten."""
    b = problem.buffers[index]
    last = min(b.live_range[1], problem.steps - 1)
    if not placement.copied and placement.end != last:
        yield Violation(
            "residency", f"buffer {index} is nowhere else, and stays until {placement.end}"
        )
    for t in written[b.alias_id] if b.alias_id is not None else ():
        if placement.copied and b.target_time < t <= placement.end:
            yield Violation(
                "residency", f"buffer {index} is overwritten at {t}, copied until {placement.end}"
            )
