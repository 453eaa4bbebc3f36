"""Schedule: a tree of loops over statements.

    for i<I:
      for t<T:    o h1 h2 p a
      for t<T rev: g
      for t<T:    k1 k2 +dW | t-4: c d_y
      dW m v

A statement at shift s runs at t = τ - s, in a loop backwards at t = s - τ (τ counts the loop's
steps). `+dW` adds to the running value of the fold dW; dW itself stands where its total is ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph
from recurra.ir.statement import Statement, StatementGraph
from recurra.ir.types import Range
from recurra.ops.collective import SHARD
from recurra.ops.source import Input
from recurra.report.html import code_html

TOP = 0  # the id of no loop: what stands for the whole schedule in maps by loop


@dataclass(frozen=True)
class Exec:
    """Runs one statement at the current point."""

    name: str


@dataclass(frozen=True)
class Loop:
    """Runs `body` for every step; `shifts` says how late each statement is, `step` is +1 or -1.

    The `id` is the loop's own in its schedule, from 1 on, and stays when the loop is rebuilt with
    another body or other shifts. What is `predicated` asks at every step if it runs: it
    does at its own points only, and cuts the loop nowhere.
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
        """The statements that ask at every step of a loop if they run."""
        return frozenset[str]().union(*(x.predicated for x in self.loops()))

    def loops(self) -> list[Loop]:
        """Every loop, those around ahead of those inside."""
        out: list[Loop] = []
        todo = list(self.items)
        while todo:
            it = todo.pop(0)
            if isinstance(it, Loop):
                out.append(it)
                todo = [*it.body, *todo]
        return out

    def places(self) -> dict[str, tuple[int, ...]]:
        """Map each statement to its position at every depth: what is less runs first."""
        return {s: tuple(k for k, _ in path) for s, path in self.paths().items()}

    def paths(self) -> dict[str, tuple[tuple[int, Loop | None], ...]]:
        """Map each statement to the position, and the loop entered there, at every depth."""
        out: dict[str, tuple[tuple[int, Loop | None], ...]] = {}

        def walk(items: tuple[Item, ...], path: tuple[tuple[int, Loop | None], ...]) -> None:
            for k, it in enumerate(items):
                if isinstance(it, Exec):
                    out[it.name] = (*path, (k, None))
                else:
                    walk(it.body, (*path, (k, it)))

        walk(self.items, ())
        return out


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
    """Is it the same everywhere, of nothing, in every worker? Then it is made where it is used."""
    source = (
        not statement.args
        and not statement.domain.ranges
        and statement.op.pure
        and not isinstance(statement.op, Input)
    )
    return source and not statement.op.drawn and SHARD not in statement.op.mentions()


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
    """Map each equation in a loop to the loops around it, and its delay in the innermost one.

    Folds are left out: their steps belong to where their operand is. Of branches that run in
    several places it is that of the last.
    """
    out: dict[str, tuple[object, ...]] = {}
    for s, path in schedule.paths().items():
        loops, statement = [(k, x) for k, x in path if x is not None], schedule.statements[s]
        if loops and not statement.accumulates:
            at = tuple((k, x.dim, x.step) for k, x in loops)
            out[statement.equation] = (*at, loops[-1][1].shift[s])
    return out
