"""Schedule: a tree of loops over equations.

    for i<I:
      for t<T:    o h1 h2 p a
      for t<T rev: g
      for t<T:    k1 k2 +dW | t-4: c d_y
      dW m v

An equation at shift s runs at t = τ - s (τ counts the loop's steps). `+dW` adds to the running
value of the fold dW; dW itself stands where its total is ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from recurra.fragments import code_html
from recurra.ir.graph import Graph, Ref
from recurra.ir.types import Domain
from recurra.ops.reduction import Fold
from recurra.ops.source import Input

ADD = "+"  # statement "+f" accumulates one step of the fold f
TOP = 0  # the id of no loop: what stands for the whole schedule in maps by loop


@dataclass(frozen=True)
class Read:
    """One dependence: `sink` reads `ref` of `source`, as operand `k`."""

    sink: str
    source: str
    ref: Ref
    k: int


@dataclass(frozen=True)
class Exec:
    """Computes one equation (or one step of a fold) at the current point."""

    name: str


@dataclass(frozen=True)
class Loop:
    """Runs `body` for every step; `shifts` says how late each statement is, `step` is +1 or -1.

    The `id` is the loop's own in its schedule, from 1 on, and stays when the loop is rebuilt with
    another body or other shifts.
    """

    dim: str
    step: int
    shifts: tuple[tuple[str, int], ...]
    body: tuple[Item, ...]
    id: int = TOP

    @cached_property
    def shift(self) -> Mapping[str, int]:
        return dict(self.shifts)


Item = Exec | Loop


@dataclass(frozen=True)
class Schedule:
    """The order in which a graph's equations run."""

    graph: Graph
    items: tuple[Item, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self.items, 0))

    def _repr_html_(self) -> str:
        return code_html(str(self))

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
        """For each statement its position at every depth: what is less runs first."""
        return {s: tuple(k for k, _ in path) for s, path in self.paths().items()}

    def paths(self) -> dict[str, tuple[tuple[int, Loop | None], ...]]:
        """For each statement, its place: at every depth the position and the loop entered there."""
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


def statements(graph: Graph) -> tuple[str, ...]:
    """Every equation, and for each fold its accumulating step."""
    out: list[str] = []
    for n in graph.nodes.values():
        if isinstance(n.op, Fold):
            out.append(ADD + n.name)
        out.append(n.name)
    return tuple(out)


def equation(statement: str) -> str:
    return statement.removeprefix(ADD)


def is_step(statement: str) -> bool:
    return statement.startswith(ADD)


def is_constant(graph: Graph, statement: str) -> bool:
    """Is it the same everywhere, of nothing? Then it is made where it is used."""
    n = graph[equation(statement)]
    source = not n.args and not n.domain.ranges and n.op.pure and not isinstance(n.op, Input)
    return source and not n.op.drawn and not is_step(statement)


def domain_of(graph: Graph, statement: str) -> Domain:
    """Where a statement runs: the step of a fold runs over its operand's domain."""
    node = graph[equation(statement)]
    return graph[node.args[0].name].domain if is_step(statement) else node.domain


def reads(graph: Graph) -> Iterator[Read]:
    """Every dependence between statements."""
    for n in graph.nodes.values():
        if isinstance(n.op, Fold):
            (a,) = n.args
            yield Read(ADD + n.name, a.name, graph.read(a.name), 0)
            yield Read(n.name, ADD + n.name, a, 0)
        else:
            for k, a in enumerate(n.args):
                yield Read(n.name, a.name, a, k)


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
    """For each equation in a loop: the loops around it and how late it runs in the innermost one.

    Folds are left out: their steps belong to where their operand is.
    """
    out: dict[str, tuple[object, ...]] = {}
    for s, path in schedule.paths().items():
        loops = [(k, x) for k, x in path if x is not None]
        if loops and not is_step(s):
            at = tuple(k for k, _ in loops)
            out[s] = (*at, loops[-1][1].shift[s])
    return out
