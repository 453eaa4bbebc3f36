"""Nest: the loops that compute a problem and those that write its result, and the agent's cursor.

    for m in 16 tail 4:            16 trips of 6, and 4 left over (m<100)
      for k in 64:
        for m in 6:                <<< cursor
          for n in 64:
            T[m,n] += A[m,k] * B[k,n]
    for m in 100:
      for n in 64:
        C[m,n] = relu(T[m,n])

LoopTune's IR (section 3, figures 3 and 5; LoopTool): the compute nest reduces into T, the write
nest gives C. Every loop runs over what the next outer loop of its index leaves it; `size` and
`tail` are those of a full trip. Actions are in `recurra.nest.actions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from recurra.errors import ScheduleError
from recurra.nest.problem import Problem
from recurra.nest.text import parse as parse_problem

CURSOR = "  <<<"


@dataclass(frozen=True)
class Loop:
    """`size` trips over one index, and `tail` index points that are left over for a last one."""

    index: str
    size: int
    tail: int = 0

    def __str__(self) -> str:
        return f"for {self.index} in {self.size}" + (f" tail {self.tail}" if self.tail else "")


@dataclass(frozen=True)
class Nest:
    """A schedule of a problem: loops outermost first. `cursor` counts compute, then write loops.

    Raises ScheduleError if the loops do not cover the index space exactly.
    """

    problem: Problem
    compute: tuple[Loop, ...]
    write: tuple[Loop, ...]
    cursor: int = 0

    def __post_init__(self) -> None:
        check(self)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Compute loops, then write loops."""
        return self.compute + self.write

    @cached_property
    def steps(self) -> tuple[tuple[str, int], ...]:
        """(index, points per trip) of every compute loop."""
        return tuple(zip((x.index for x in self.compute), steps(self.compute), strict=True))

    @cached_property
    def write_steps(self) -> tuple[tuple[str, int], ...]:
        """(index, points per trip) of every write loop."""
        return tuple(zip((x.index for x in self.write), steps(self.write), strict=True))

    @cached_property
    def order(self) -> str:
        """`m/6 k m n | m n`: the loops with their steps, as `scheduled` reads them."""
        parts = (self.steps, self.write_steps)
        words = [" ".join(i if s == 1 else f"{i}/{s}" for i, s in part) for part in parts]
        return " | ".join(words).strip()

    def __str__(self) -> str:
        p = self.problem
        product, indices = " * ".join(map(str, p.inputs)), ",".join(map(str, p.output.at))
        gather = {"sum": "+=", "max": "max="}[p.combine] if p.reduced or p.initial else "="
        result = f"{p.post}(T[{indices}])" if p.post else f"T[{indices}]"
        lines = [*_indented(self.compute, f"T[{indices}] {gather} {product}")]
        lines += _indented(self.write, f"{p.output} = {result}")
        at = self.cursor + (self.cursor >= len(self.compute))  # the statement is a line, too
        lines[at] += CURSOR
        return "\n".join([str(p), "", *lines])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def _indented(loops: Sequence[Loop], leaf: str) -> list[str]:
    lines = [f"{'  ' * depth}{loop}:" for depth, loop in enumerate(loops)]
    return [*lines, "  " * len(loops) + leaf]


def untiled(problem: Problem) -> Nest:
    """One loop per index, in the problem's order: where every search begins."""
    loops = tuple(Loop(i, n) for i, n in problem.sizes)
    return Nest(problem, loops, tuple(x for x in loops if x.index in problem.output.indices))


def scheduled(problem: Problem, order: str) -> Nest:
    """The nest of `order`, as in "n/64 m/6 k m n": loops outermost first, with points per trip.

    Write loops may follow after `|`; without them there is one per output index. Raises
    ScheduleError.
    """
    compute, bar, write = order.partition("|")
    plain = untiled(problem)
    return Nest(
        problem,
        _read(problem, compute),
        _read(problem, write) if bar else plain.write,
    )


def _read(problem: Problem, words: str) -> tuple[Loop, ...]:
    left, loops = dict(problem.extents), list[Loop]()
    for word in words.split():
        found = re.fullmatch(r"([a-z]\w*)(?:/([1-9]\d*))?", word)
        if not found or found[1] not in left:
            raise ScheduleError(
                f"not understood: {word!r} in {words.strip()!r}",
                facts=f"loops are as in n/64 m/6 k m n; indices: {', '.join(left)}",
            )
        index, step = found[1], int(found[2] or 1)
        size, tail = divmod(left[index], step)
        if not size:
            raise ScheduleError(
                f"{word} takes {step} points of {index} in a trip",
                facts=f"{left[index]} are left to it",
                hint="give smaller steps to inner loops",
            )
        loops.append(Loop(index, size, tail))
        left[index] = step
    if coarse := [i for i in dict.fromkeys(x.index for x in loops) if left[i] > 1]:
        raise ScheduleError(
            f"the last loop over {coarse[0]} in {words.strip()!r} leaves points to no loop",
            facts=f"it takes {left[coarse[0]]} points in a trip",
            hint=f"add an inner loop {coarse[0]}",
        )
    return tuple(loops)


def parse(text: str) -> Nest:
    """The nest that prints as `text`; raises ShapeError or ScheduleError."""
    head, _, body = text.strip().partition("\n\n")
    problem, parts, cursor = parse_problem(head), ([], []), 0
    which = 0
    for line in body.splitlines():
        found = re.fullmatch(r" *for ([a-z]\w*) in (\d+)(?: tail (\d+))?:(  <<<)?", line)
        if found:
            if found[4]:
                cursor = len(parts[0]) + len(parts[1])
            parts[which].append(Loop(found[1], int(found[2]), int(found[3] or 0)))
        elif which < 1:
            which += 1
    nest = Nest(problem, tuple(parts[0]), tuple(parts[1]), cursor)
    if _plain(str(nest)) != _plain(text):
        raise ScheduleError("not understood as a nest", facts=f"as read, it prints:\n{nest}")
    return nest


def _plain(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines() if line.strip()]


def steps(loops: Sequence[Loop]) -> list[int]:
    """Index points per trip of each loop: the extent of the next inner loop of its index, or 1."""
    inner: dict[str, int] = {}
    found: list[int] = []
    for loop in reversed(loops):
        step = inner.get(loop.index, 1)
        found.append(step)
        inner[loop.index] = loop.size * step + loop.tail
    return found[::-1]


def check(nest: Nest) -> None:
    """Raises ScheduleError unless loops cover their indices exactly."""
    p = nest.problem
    _check_loops(nest.compute, p.extents, "compute")
    written = {i: n for i, n in p.extents.items() if i in p.output.indices}
    _check_loops(nest.write, written, "write")
    if not 0 <= nest.cursor < len(nest.loops):
        raise ScheduleError(
            "the cursor is on no loop", facts=f"at {nest.cursor} of {len(nest.loops)} loops"
        )


def _check_loops(loops: tuple[Loop, ...], extents: Mapping[str, int], what: str) -> None:
    covered: dict[str, int] = {}
    for loop, step in zip(reversed(loops), reversed(steps(loops)), strict=True):
        if loop.size < 1 or not 0 <= loop.tail < step:
            raise ScheduleError(
                f"`{loop}` in the {what} nest is no loop",
                facts=f"a trip is {step} points; size is 1 or more, tail 0 to {step - 1}",
            )
        covered[loop.index] = loop.size * step + loop.tail
    if covered != dict(extents):
        facts = [f"{i}: {covered.get(i, 0)} of {n}" for i, n in extents.items()]
        facts += [f"{i}: not an index here" for i in covered if i not in extents]
        raise ScheduleError(f"the {what} nest misses points", facts=", ".join(facts))


def points(
    order: Sequence[tuple[str, int]], extents: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Every index point in the order in which loops (index, points per trip) visit it."""
    if not order:
        yield {}
        return
    (index, step), inner = order[0], order[1:]
    for start in range(0, extents[index], step):
        left = min(step, extents[index] - start)
        for point in points(inner, {**extents, index: left}):
            yield {**point, index: point.get(index, 0) + start}


def canonical(
    order: Sequence[tuple[str, int]], extents: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """The loops that make a difference: the same code comes of all nests that share them.

    Gone are loops of a single trip, and loops directly around a loop of their index whose step
    divides theirs. One loop stays in any case.
    """
    left, kept = dict(extents), list[tuple[str, int]]()
    for index, step in order:
        if left[index] > step:
            while kept and kept[-1][0] == index and kept[-1][1] % step == 0:
                kept.pop()
            kept.append((index, step))
        left[index] = step
    return tuple(kept) or tuple(order[-1:])
