"""Schedule: a tree of loops over statements.

    for i<I:
      for t<T:    o h1 h2 p a
      for t<T rev: g
      for t<T:    k1 k2 +dW | t-4: c d_y
      dW m v

A statement at shift s runs at t = τ - s, in a backward loop at t = s - τ (τ counts the loop's
steps). `+dW` adds to the running value of the fold dW; dW itself is where its total is ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, takewhile
from typing import Any

from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph
from recurra.ir.statement import Statement, StatementGraph
from recurra.ir.types import Range
from recurra.ops.collective import SHARD
from recurra.ops.source import Input
from recurra.report.html import code_html

TOP = 0  # the id of no loop; the key of the whole schedule in maps by loop


@dataclass(frozen=True)
class Exec:
    """An item that runs one statement at the current point."""

    name: str


@dataclass(frozen=True)
class Loop:
    """A loop that runs `body` at every step.

    `shifts` are the delays of statements, in steps; `step` is +1 or -1. The `id`, from 1 on, is
    unique in a schedule, and stays when the loop is rebuilt with another body or other shifts.
    Statements that are `predicated` test at every step whether they run, so the loop is not split
    at the ends of their ranges.
    """

    dim: str
    step: int
    shifts: tuple[tuple[str, int], ...]
    body: tuple[Item, ...]
    id: int = TOP
    predicated: frozenset[str] = frozenset()

    @cached_property
    def shift(self) -> Mapping[str, int]:
        return dict(self.shifts)

    def point(self, statement: str, time: Any) -> Any:
        """The point of a statement at a time."""
        late = time - self.shift[statement]
        return late if self.step > 0 else -late

    def times(self, statement: str, points: Range, env: Mapping[str, int]) -> range:
        """The times of a statement at these points."""
        lo, hi, late = evaluate(points.lo, env), evaluate(points.hi, env), self.shift[statement]
        return range(lo + late, hi + late) if self.step > 0 else range(1 - hi + late, 1 - lo + late)


Item = Exec | Loop
Path = tuple[tuple[int, Loop | None], ...]  # at every depth: position, and the loop entered there


@dataclass(frozen=True)
class Schedule:
    """The order in which the statements of a graph of values run."""

    graph: Graph
    statements: StatementGraph
    items: tuple[Item, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self.items, 0))

    def _repr_html_(self) -> str:
        return code_html(str(self))

    @cached_property
    def predicated(self) -> frozenset[str]:
        """The statements that test at every step of some loop whether they run."""
        return frozenset[str]().union(*(x.predicated for x in self.loops()))

    def loops(self) -> list[Loop]:
        """Every loop, outer before inner."""

        def walk(items: tuple[Item, ...]) -> Iterator[Loop]:
            for it in items:
                if isinstance(it, Loop):
                    yield it
                    yield from walk(it.body)

        return list(walk(self.items))

    def places(self) -> dict[str, tuple[int, ...]]:
        """The position of each statement at every depth; lower positions run first."""
        return {s: tuple(k for k, _ in path) for s, path in self.paths().items()}

    def paths(self) -> dict[str, Path]:
        """The path of each statement."""
        out: dict[str, Path] = {}

        def walk(items: tuple[Item, ...], path: Path) -> None:
            for k, it in enumerate(items):
                if isinstance(it, Exec):
                    out[it.name] = (*path, (k, None))
                else:
                    walk(it.body, (*path, (k, it)))

        walk(self.items, ())
        return out


def members(items: tuple[Item, ...]) -> list[str]:
    """Every statement in some items, at any depth."""
    out: list[str] = []
    for it in items:
        out += [it.name] if isinstance(it, Exec) else members(it.body)
    return out


def common_loops(one: Path, other: Path) -> list[Loop]:
    """The loops on both paths."""
    pairs = takewhile(lambda p: p[0][0] == p[1][0], zip(one, other, strict=False))
    return [loop for (_, loop), _ in pairs if loop is not None]


def number_loops(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return the items with ids for their loops: 1, 2, .. in the order in which they print."""
    ids = count(TOP + 1)

    def number(it: Item) -> Item:
        if isinstance(it, Exec):
            return it
        id = next(ids)
        return replace(it, id=id, body=tuple(map(number, it.body)))

    return tuple(map(number, items))


def is_constant(statement: Statement) -> bool:
    """Tell whether a value has no operands and is the same at every point in every worker: it is
    then computed where it is used."""
    op = statement.op
    if statement.args or statement.domain.ranges or isinstance(op, Input):
        return False
    return op.pure and not op.drawn and SHARD not in op.mentions()


def _lines(
    items: tuple[Item, ...], depth: int, shift: Mapping[str, int] | None = None
) -> Iterator[str]:
    pad, run = "  " * depth, list[str]()
    for it in items:
        if isinstance(it, Exec):
            late = (shift or {}).get(it.name, 0)
            run.append(f"{it.name}@-{late}" if late else it.name)
            continue
        if run:
            yield pad + " ".join(run)
            run = []
        back = "" if it.step > 0 else " backwards"
        yield f"{pad}for {it.dim}{back}:"
        yield from _lines(it.body, depth + 1, it.shift)
    if run:
        yield pad + " ".join(run)


def phases(schedule: Schedule) -> dict[str, tuple[object, ...]]:
    """Map each equation in a loop to the loops around it, and its shift in the innermost one.

    Folds are left out: their additions belong to the loops of their operand. An equation whose
    branches run in several places has the loops of the last.
    """
    out: dict[str, tuple[object, ...]] = {}
    for s, path in schedule.paths().items():
        loops, statement = [(k, x) for k, x in path if x is not None], schedule.statements[s]
        if loops and not statement.accumulates:
            at = tuple((k, x.dim, x.step) for k, x in loops)
            out[statement.equation] = (*at, loops[-1][1].shift[s])
    return out
