"""Nest: the loops that compute a problem and those that write its result, and the agent's cursor.

    for m in 16 tail 4:            16 trips of 6, and 4 left over (m<100)
      for k in 64:
        for m in 6:                <<< cursor
          for n in 64:
            T[m,n] += A[m,k] * B[k,n]
    for m in 100:
      for n in 64:
        C[m,n] = relu(T[m,n])

Loops have two annotations: the part of an input that inner loops read is packed (copied to
contiguous memory) before they begin, and threads share the trips of the outermost loop.

    parallel for n in 8:
      pack B[k,n]
      for m in 128: ..

LoopTune's IR (section 3, figures 3 and 5; LoopTool): the compute nest reduces into T, the write
nest writes C. Every loop runs over the points of one trip of the next outer loop of its index;
`size` and `tail` are those of a full trip. Actions are in `recurra.nest.actions`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape

from recurra.errors import ScheduleError
from recurra.nest.problem import NestProblem, expect_problem
from recurra.nest.text import parse as parse_problem

CURSOR = "  <<<"


@dataclass(frozen=True)
class NestLoop:
    """`size` trips over one index, and a last one over the `tail` points that are left."""

    index: str
    size: int
    tail: int = 0

    def __str__(self) -> str:
        return f"for {self.index} in {self.size}" + (f" tail {self.tail}" if self.tail else "")


@dataclass(frozen=True)
class Pack:
    """A copy of the part of an input that the compute loops from `level` inwards read."""

    tensor: str
    level: int


@dataclass(frozen=True)
class Nest:
    """A schedule of a problem: loops outermost first. `cursor` counts compute, then write loops.

    Raises ScheduleError if the loops do not cover the index space exactly, an annotation names no
    input, or threads would share a reduction.
    """

    problem: NestProblem
    compute: tuple[NestLoop, ...]
    write: tuple[NestLoop, ...]
    cursor: int = 0
    packs: tuple[Pack, ...] = ()
    """Sorted by level"""
    parallel: bool = False
    """Whether threads share the trips of the outermost compute loop"""

    def __post_init__(self) -> None:
        check_loops(self)

    @property
    def loops(self) -> tuple[NestLoop, ...]:
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
        """`parallel n/64 [B] m/6 k m n | m n`: loops and steps, as `scheduled` reads them."""
        parts = self.steps, self.write_steps
        compute, write = ([i if s == 1 else f"{i}/{s}" for i, s in part] for part in parts)
        for pack in reversed(self.packs):
            compute.insert(pack.level, f"[{pack.tensor}]")
        words = ["parallel"] * self.parallel + compute
        return f"{' '.join(words)} | {' '.join(write)}".strip()

    def __str__(self) -> str:
        p = self.problem
        product, total = " * ".join(map(str, p.inputs)), f"T[{','.join(map(str, p.output.at))}]"
        assign = {"sum": "+=", "max": "max="}[p.combine] if p.reduced or p.initial else "="
        result = f"{p.post}({total})" if p.post else total
        lines = _indented(self.compute, f"{total} {assign} {product}")
        lines += _indented(self.write, f"{p.output} = {result}")
        at = self.cursor + (self.cursor >= len(self.compute))  # the statement is a line, too
        lines[at] += CURSOR
        if self.parallel:
            lines[0] = f"parallel {lines[0]}"
        access = {t.name: t for t in p.inputs}
        for pack in reversed(self.packs):
            lines.insert(pack.level, f"{'  ' * pack.level}pack {access[pack.tensor]}")
        return "\n".join([str(p), "", *lines])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _indented(loops: Sequence[NestLoop], leaf: str) -> list[str]:
    lines = [f"{'  ' * depth}{loop}:" for depth, loop in enumerate(loops)]
    return [*lines, "  " * len(loops) + leaf]


def untiled(problem: NestProblem) -> Nest:
    """Return one loop per index, in the problem's order: the beginning of every search."""
    expect_problem(problem, "untiled")
    loops = tuple(NestLoop(i, n) for i, n in problem.sizes)
    return Nest(problem, loops, tuple(x for x in loops if x.index in problem.output.indices))


def scheduled(problem: NestProblem, order: str) -> Nest:
    """Return the nest of an order such as "n/64 m/6 k m n": loops and points per trip.

    Write loops may follow after `|`; without them there is one per output index. `[B]` packs B for
    the loops after it, `parallel` comes first. Raises ScheduleError.
    """
    expect_problem(problem, "scheduled")
    if not isinstance(order, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScheduleError(
            "a nest is the order of its loops, as text",
            facts=f"given: {order!r}",
            hint=f"{' '.join(i for i, _ in problem.sizes)!r}",
        )
    compute, bar, write = order.partition("|")
    plain = untiled(problem)
    words = compute.split()
    parallel = words[:1] == ["parallel"]
    loops, packs = list[str](), list[Pack]()
    for word in words[parallel:]:
        if word[0] == "[" and word[-1] == "]":
            packs.append(Pack(word[1:-1], len(loops)))
        else:
            loops.append(word)
    return Nest(
        problem,
        _parse_loops(problem, " ".join(loops)),
        _parse_loops(problem, write) if bar else plain.write,
        packs=tuple(packs),
        parallel=parallel,
    )


def _parse_loops(problem: NestProblem, words: str) -> tuple[NestLoop, ...]:
    left, loops = dict(problem.extents), list[NestLoop]()
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
        loops.append(NestLoop(index, size, tail))
        left[index] = step
    if coarse := [i for i in dict.fromkeys(x.index for x in loops) if left[i] > 1]:
        raise ScheduleError(
            f"the last loop over {coarse[0]} in {words.strip()!r} leaves points to no loop",
            facts=f"it takes {left[coarse[0]]} points in a trip",
            hint=f"add an inner loop {coarse[0]}",
        )
    return tuple(loops)


def restricted(nest: Nest, extents: Mapping[str, int]) -> Nest:
    """Return the same loops over the first points of some indices, with the same arrays."""
    sizes = tuple((i, extents.get(i, n)) for i, n in nest.problem.sizes)
    p = replace(nest.problem, sizes=sizes)
    compute, write = (_truncated(order, dict(sizes)) for order in (nest.steps, nest.write_steps))
    return Nest(p, compute, write, packs=nest.packs)


def _truncated(order: Sequence[tuple[str, int]], left: dict[str, int]) -> tuple[NestLoop, ...]:
    loops: list[NestLoop] = []
    for index, step in order:
        step = min(step, left[index])
        loops.append(NestLoop(index, *divmod(left[index], step)))
        left[index] = step
    return tuple(loops)


def parse(text: str) -> Nest:
    """Return the nest that prints as `text`; raise ShapeError or ScheduleError."""
    head, _, body = text.strip().partition("\n\n")
    problem, cursor, packs = parse_problem(head), 0, list[Pack]()
    compute, write = list[NestLoop](), list[NestLoop]()
    part = compute
    parallel = body.startswith("parallel ")
    for line in body.removeprefix("parallel ").splitlines():
        found = re.fullmatch(r" *for ([a-z]\w*) in (\d+)(?: tail (\d+))?:(  <<<)?", line)
        if packed := re.match(r" *pack (\w+)\[", line):
            packs.append(Pack(packed[1], len(compute)))
        elif found:
            if found[4]:
                cursor = len(compute) + len(write)
            part.append(NestLoop(found[1], int(found[2]), int(found[3] or 0)))
        else:  # a statement
            part = write
    nest = Nest(problem, tuple(compute), tuple(write), cursor, tuple(packs), parallel)
    if _plain(str(nest)) != _plain(text):
        raise ScheduleError("not understood as a nest", facts=f"as read, it prints:\n{nest}")
    return nest


def _plain(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines() if line.strip()]


def steps(loops: Sequence[NestLoop]) -> list[int]:
    """Return the points per trip of each loop: the extent of the next inner loop, or 1."""
    inner: dict[str, int] = {}
    points: list[int] = []
    for loop in reversed(loops):
        step = inner.get(loop.index, 1)
        points.append(step)
        inner[loop.index] = loop.size * step + loop.tail
    return points[::-1]


def check_loops(nest: Nest) -> None:
    """Raise ScheduleError unless loops cover their indices exactly, and annotations fit."""
    p = nest.problem
    _check_loops(nest.compute, p.extents, "compute")
    written = {i: n for i, n in p.extents.items() if i in p.output.indices}
    _check_loops(nest.write, written, "write")
    if not 0 <= nest.cursor < len(nest.loops):
        raise ScheduleError(
            "the cursor is on no loop", facts=f"at {nest.cursor} of {len(nest.loops)} loops"
        )
    _check_packs(nest)
    if nest.parallel:
        _check_parallel(nest)


def _check_packs(nest: Nest) -> None:
    names, levels = [x.tensor for x in nest.packs], [x.level for x in nest.packs]
    inputs = [t.name for t in nest.problem.inputs]
    if strange := [x for x in names if x not in inputs]:
        raise ScheduleError(
            f"{strange[0]} cannot be packed", facts=f"inputs are {', '.join(inputs)}"
        )
    if len(set(names)) < len(names):
        raise ScheduleError("an input is packed twice", facts=f"packed: {', '.join(names)}")
    if levels != sorted(levels) or not all(0 <= x < len(nest.compute) for x in levels):
        raise ScheduleError(
            "inputs are packed before some loop, outer ones first",
            facts=f"levels {levels} of {len(nest.compute)} loops",
        )


def _check_parallel(nest: Nest) -> None:
    first, p = nest.compute[0], nest.problem
    if first.index not in p.output.indices:
        raise ScheduleError(
            f"threads cannot share the loop over {first.index}",
            facts=f"{p.output} has no {first.index}: all of them would add to the same sums",
            hint="begin with a loop over an index of the output",
        )
    if first.size + bool(first.tail) < 2:
        raise ScheduleError(
            f"threads cannot share `{first}`",
            facts="it has one trip",
            hint="begin with a loop of more trips",
        )


def _check_loops(loops: tuple[NestLoop, ...], extents: Mapping[str, int], kind: str) -> None:
    covered: dict[str, int] = {}
    for loop, step in zip(reversed(loops), reversed(steps(loops)), strict=True):
        if loop.size < 1 or not 0 <= loop.tail < step:
            raise ScheduleError(
                f"`{loop}` in the {kind} nest is no loop",
                facts=f"a trip is {step} points; size is 1 or more, tail 0 to {step - 1}",
            )
        covered[loop.index] = loop.size * step + loop.tail
    if covered != dict(extents):
        facts = [f"{i}: {covered.get(i, 0)} of {n}" for i, n in extents.items()]
        facts += [f"{i}: not an index here" for i in covered if i not in extents]
        raise ScheduleError(f"the {kind} nest misses points", facts=", ".join(facts))


def canonical(
    order: Sequence[tuple[str, int]], extents: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """Remove loops that do not change the code.

    These are loops of a single trip, and loops directly around a loop of their index whose step
    divides theirs. One loop stays in any case.
    """
    return placed(order, extents, ())[0]


def placed(
    order: Sequence[tuple[str, int]], extents: Mapping[str, int], levels: Sequence[int]
) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]]:
    """Return the `canonical` loops, and the positions among them of `levels` of `order`.

    Loops on two sides of a level are not merged.
    """
    left, loops = dict(extents), list[tuple[str, int]]()
    border, found = 0, dict[int, int]()
    for k, (index, step) in enumerate(order):
        if k in levels:
            found[k] = border = len(loops)
        if left[index] > step:
            while len(loops) > border and loops[-1][0] == index and loops[-1][1] % step == 0:
                loops.pop()
            loops.append((index, step))
        left[index] = step
    last = max(0, len(loops) - 1)
    return tuple(loops) or tuple(order[-1:]), tuple(min(last, found[k]) for k in levels)
