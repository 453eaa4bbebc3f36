"""Loops over time that end when no row goes on, and what is true of the points that they leave out.

    alive[i,t] = merge(true, going[i,t-1], ..)     the loop with `going` stops once it is all false;
    going[i,t] = going(alive, more)                later loops of the same i stop at the same t

Such points are read only where a mask hides them, or where their value is one number: zero in a
sum, the neutral number in an extremum, the last value of what is kept. Stores get it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import numpy as np

from recurra.ir.expr import Sym, evaluate, lin
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import Elementwise
from recurra.ir.order import components
from recurra.ir.types import NUMPY_NAME, Type, is_shift
from recurra.memory.plan import Plan
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.elementwise import Going, Mul, Where
from recurra.ops.movement import Cut, Expand, Flip, Reshape, Transpose
from recurra.ops.reduction import Max, Min, Sum
from recurra.ops.source import Const
from recurra.program.steps import members
from recurra.schedule.dependences import dependences
from recurra.schedule.tree import Exec, Loop


@dataclass(frozen=True)
class Ended:
    """`going` ends `time`; loops over `units` end with it, each step being so many points.

    A loop that finds out asks `every` so many steps. Those that it runs past the end change
    nothing: a row computes on past its end, and what reads it is masked, or filled anew.
    """

    going: str
    time: str
    points: int  # of the longest row
    units: Mapping[str, int]
    every: int = 1

    def sets(self, loop: Loop) -> bool:
        """Is it this loop that finds out where rows end?"""
        return loop.dim == self.time and loop.step > 0 and Exec(self.going) in loop.body


def endings(graph: Graph, sizes: Mapping[str, int]) -> tuple[Ended, ...]:
    """What ends loops of a graph."""
    out: list[Ended] = []
    ranges = {d.name: d.range for d in graph.dims}
    for n in graph.nodes.values():
        if isinstance(n.op, Going):
            time = n.op.times[0]
            units = dict.fromkeys(n.op.times, 1)
            for outer, inner in filter(None, map(graph.halves, n.op.times)):
                units[outer.name] = inner.range.size(sizes)
            points = evaluate(ranges[time].hi, sizes)
            out.append(Ended(n.name, time, points, units, max(n.op.every, 1)))
    return tuple(out)


def fillable(plan: Plan, loop: Loop, active: frozenset[str]) -> list[str]:
    """Stores written in a loop that keep every point of it."""
    out: list[str] = []
    inside = (plan.statements[s].array for s in members(loop.body) if s in active)
    for n in dict.fromkeys(inside):
        store = plan.stores.get(n)
        if store is not None:
            out += [n for a in store.kept if a.dim == loop.dim and a.kind == "block"]
    return out


def read_inside(plan: Plan, loop: Loop, active: frozenset[str]) -> frozenset[str]:
    """Stores that a loop both writes and reads."""
    inside = active & set(members(loop.body))
    found = dependences(plan.statements)
    return frozenset(r.source for r in found if {r.source, r.sink} <= inside)


def reach(plan: Plan, e: Ended, name: str, depth: int, active: frozenset[str]) -> int | None:
    """How many points of a store past its end are read; None: it may be all of them.

    Readers in a loop at the same depth end with it: they read less than a tile past the end.
    """
    if plan.stores[name].output:
        return None
    paths, out = plan.schedule.paths(), 0
    for r in dependences(plan.statements):
        if r.ref.name != name or plan.accesses[r.sink, r.k].how != "store":
            continue
        theirs = paths[r.sink]
        beside = len(theirs) > depth and theirs[:depth] == paths[r.source][:depth]
        around = theirs[depth][1] if beside else None
        if r.sink not in active or around is None or around.dim not in e.units:
            return None
        timed = [x for x in r.ref.index if index_symbols(x) & e.units.keys()]
        found = [_past(x, around.dim, e.units[around.dim]) for x in timed]
        if None in found or not found:
            return None
        out = max(out, *(x for x in found if x is not None))
    return out


def _past(x: Index, dim: str, unit: int) -> int | None:
    """How far a read goes beyond the first point of a step over `dim` that is left out."""
    at, size = (x.lo, x.size) if isinstance(x, Slice) else (x, 1)
    if not isinstance(size, int):
        return None
    length = size * (x.step if isinstance(x, Slice) else 1)
    gap = lin([(at, 1), (Sym(dim), -unit)])
    if isinstance(gap, int):
        return max(gap, 0) + unit + length
    shift = is_shift(at, dim)  # a store that has such steps itself
    return None if shift is None else max(shift, 0) + length


@dataclass(frozen=True)
class Kept:
    """The value of an equation at the last point that there is."""

    name: str


Past = float | Kept | None  # None: whatever
_OPEN = Kept("")  # of an equation that waits for itself


@dataclass(frozen=True)
class PastEnd:
    """What equations are where no row has a point; only as much as a reader can rely on."""

    graph: Graph
    ended: Ended
    known: dict[str, Past] = field(default_factory=dict[str, Past])

    def __post_init__(self) -> None:
        """All are open at first, then what their operands make them, which must not change.

        Sources come first; of a cycle, each is looked at until nothing is new.
        """
        nodes = self.graph.nodes
        self.known.update(dict.fromkeys(nodes, _OPEN))
        for part in components(nodes, lambda n: [a.name for a in nodes[n].args]):
            while any([self.look(name) for name in part]):
                pass

    def look(self, name: str) -> bool:
        """Is anything new of an equation?"""
        old, new = self.known[name], self.compute(self.graph[name])
        if isinstance(new, float) and isnan(new):
            new = nan  # one object: a NaN is equal to no other, but it is no news
        if new is old or new == old or old is None:
            return False
        self.known[name] = new if old is _OPEN else None
        return True

    def value(self, name: str) -> Past:
        """What every point past the end of all rows is."""
        found = self.known[name]
        return None if found is _OPEN else found

    def of(self, name: str) -> Past:
        """`value`, or open where nothing is known of it yet."""
        return self.known[name]

    def compute(self, n: Node) -> Past:
        match n.op:
            case Const(value=value):
                return value
            case Going() if n.name == self.ended.going:
                return False
            case Going():  # of other rows, which may go on
                return None
            case Merge():
                return self.merge(n)
            case Where():
                return self.where(n)
            case _:
                return self.applied(n, [self.of(a.name) for a in n.args])

    def merge(self, n: Node) -> Past:
        if any(a.name == self.ended.going for a in n.args):
            return False
        kept = next((a for a in n.args if self.keeps(self.graph[a.name], n.name)), None)
        if kept is not None:
            return Kept(n.name)
        found = {x for x in (self.of(a.name) for a in n.args) if x is not _OPEN}
        if not found:
            return _OPEN
        (one,) = found if len(found) == 1 else (None,)
        return one

    def keeps(self, n: Node, name: str) -> bool:
        """Is it where(alive, .., name[t-1])?"""
        return isinstance(n.op, Where) and self.before(n.args[2]) == name

    def before(self, a: Ref) -> str:
        """What a read takes of the point before."""
        dims = self.graph[a.name].domain.dims
        at = dict(zip(dims, a.index, strict=True)).get(self.ended.time)
        shift = None if at is None or isinstance(at, Slice) else is_shift(at, self.ended.time)
        return a.name if shift == -1 else ""

    def where(self, n: Node) -> Past:
        cond, a, b = n.args
        holds = self.of(cond.name)
        if holds is _OPEN:
            return _OPEN
        if holds is None or isinstance(holds, Kept):
            x, y = self.of(a.name), self.of(b.name)
            return x if y in (x, _OPEN) else y if x is _OPEN else None
        if not holds and self.before(b):
            return Kept(b.name)
        return self.of(a.name if holds else b.name)

    def applied(self, n: Node, xs: list[Past]) -> Past:
        if isinstance(n.op, (Einsum, Mul)) and 0 in [x for x in xs if isinstance(x, float | int)]:
            return 0.0
        if _OPEN in xs:
            return _OPEN
        numbers = [x for x in xs if isinstance(x, float | int)]
        if len(numbers) != len(xs) or not xs or not isinstance(n.type, Type):
            return None
        if isinstance(n.op, Sum):
            return 0.0 if numbers[0] == 0 else None
        if isinstance(n.op, (Max, Min, Expand, Transpose, Reshape, Cut, Flip)):
            return numbers[0]
        if not isinstance(n.op, Elementwise):
            return None
        with np.errstate(all="ignore"):
            types = [NUMPY_NAME[self.graph[a.name].type.dtype] for a in n.args]
            given: list[Any] = [np.asarray(x, t) for x, t in zip(numbers, types, strict=True)]
            return n.op.apply(np, *given).item()
