"""Loops over time that end when no row goes on, and the values of the points that they skip.

    alive[i,t] = merge(true, going[i,t-1], ..)     the loop with `going` stops once it is all false;
    going[i,t] = going(alive, more)                later loops of the same i stop at the same t

Such points are read only where a mask hides them, or where their value is one number: zero in a
sum, the neutral number in an extremum, the last value of a kept state. Stores are filled with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isnan, nan

import numpy as np

from recurra.codegen.loop_segments import calls_host
from recurra.ir.expr import Sym, evaluate, lin
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import Elementwise
from recurra.ir.order import components
from recurra.ir.types import NUMPY_NAME, Type, is_shift
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.elementwise import And, Going, Mul, Where
from recurra.ops.indexing import Pick, Take
from recurra.ops.movement import Cut, Expand, Flip, Reshape, Transpose
from recurra.ops.ordering import CumMax, Sort
from recurra.ops.reduction import Max, Min, Sum
from recurra.ops.source import Const
from recurra.schedule.dependences import dependences
from recurra.schedule.tree import Exec, Loop, Schedule, members
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Kind


@dataclass(frozen=True)
class EarlyExit:
    """The statement `going` ends the loop over `time`, and with it loops over `units`.

    A step of these is that many points. The loop that computes `going` checks it after `every`
    steps. Steps past the end change nothing: a row computes on past its end, and its readers mask
    the values, or they are overwritten. Loops in `later` do not end with it: a statement that
    is late in a loop around is at points of the row before.
    """

    going: str
    time: str
    points: int  # of the longest row
    units: Mapping[str, int]
    every: int = 1
    later: frozenset[int] = frozenset()

    def sets(self, loop: Loop) -> bool:
        """Is it the loop that finds out where rows end?"""
        mine = loop.dim == self.time and loop.step > 0 and loop.id not in self.later
        return mine and Exec(self.going) in loop.body

    def ends(self, loop: Loop) -> bool:
        """Does a loop of the host end where another one found out that rows do?"""
        along = self.units.get(loop.dim) == 1 and loop.id not in self.later
        return along and loop.step > 0 and not self.sets(loop)


def early_exits(schedule: Schedule, sizes: Mapping[str, int]) -> tuple[EarlyExit, ...]:
    """The endings of loops of a schedule, one for each `Going` equation."""
    out: list[EarlyExit] = []
    graph = schedule.graph
    ranges = {d.name: d.range for d in graph.dims}
    for n in graph.nodes.values():
        if isinstance(n.op, Going):
            time = n.op.times[0]
            units = dict.fromkeys(n.op.times, 1)
            for outer, inner in filter(None, map(graph.halves, n.op.times)):
                units[outer.name] = inner.range.size(sizes)
            points = evaluate(ranges[time].hi, sizes)
            every, later = max(n.op.every, 1), _later_loops(schedule, n.name, units)
            out.append(EarlyExit(n.name, time, points, units, every, later))
    return tuple(out)


def _later_loops(schedule: Schedule, going: str, units: Collection[str]) -> frozenset[int]:
    """The loops over `units` of statements that are later than `going` in loops around both."""
    paths = schedule.paths()
    late = {x.id: x.shift[going] for _, x in paths.get(going, ()) if x is not None}
    found: set[int] = set()
    for statement, path in paths.items():
        with_it = True
        for loop in (x for _, x in path if x is not None):
            if loop.dim in units and not with_it:
                found.add(loop.id)
            elif loop.dim not in units:
                shift = loop.shift[statement]
                with_it = with_it and late.get(loop.id, shift) == shift
    return frozenset(found)


def fillable(
    plan: StoragePlan, loop: Loop, active: frozenset[str], kinds: Collection[Kind] = ("full",)
) -> list[str]:
    """Stores written in a loop that keep every point of it, or keep points as `kinds` do.

    Inputs are left out: they belong to the caller.
    """
    out: list[str] = []
    inside = (plan.statements[s].array for s in members(loop.body) if s in active)
    for n in dict.fromkeys(inside):
        store = plan.stores.get(n)
        if store is not None and not store.given:
            out += [n for a in store.kept if a.dim == loop.dim and a.kind in kinds]
    return out


def read_inside(plan: StoragePlan, loop: Loop, active: frozenset[str]) -> frozenset[str]:
    """Stores that a loop both writes and reads."""
    inside = active & set(members(loop.body))
    found = dependences(plan.statements)
    return frozenset(r.source for r in found if {r.source, r.sink} <= inside)


def reach(
    plan: StoragePlan, ended: EarlyExit, name: str, depth: int, active: frozenset[str]
) -> int | None:
    """The number of points of a store past its end that are read; None: it may be all of them.

    Readers in a loop at the same depth end with it: they read less than a tile past the end.
    """
    if plan.stores[name].output:
        return None
    paths, out = plan.schedule.paths(), 0
    for r in dependences(plan.statements):
        if r.ref.name != name or plan.access(r.sink, r.k) != "store":
            continue
        theirs = paths[r.sink]
        beside = len(theirs) > depth and theirs[:depth] == paths[r.source][:depth]
        around = theirs[depth][1] if beside else None
        if r.sink not in active or around is None or around.dim not in ended.units:
            return None
        if calls_host(plan.statements, around) and not (ended.sets(around) or ended.ends(around)):
            return None  # it runs on to the end
        timed = [x for x in r.ref.index if index_symbols(x) & ended.units.keys()]
        found = [_past(x, around.dim, ended.units[around.dim]) for x in timed]
        if None in found or not found:
            return None
        out = max(out, *(x for x in found if x is not None))
    return out


def _past(index: Index, dim: str, unit: int) -> int | None:
    """The distance that a read goes beyond the first skipped point of a step over `dim`."""
    at, size = (index.lo, index.size) if isinstance(index, Slice) else (index, 1)
    if not isinstance(size, int):
        return None
    length = size * (index.step if isinstance(index, Slice) else 1)
    gap = lin([(at, 1), (Sym(dim), -unit)])
    if isinstance(gap, int):
        return max(gap, 0) + unit + length
    shift = is_shift(at, dim)  # a store that has such steps itself
    return None if shift is None else max(shift, 0) + length


@dataclass(frozen=True)
class LastValue:
    """The value of an equation at the last point that there is."""

    name: str


Past = float | LastValue | None  # None: unknown
_OPEN = LastValue("")  # not yet known: the start of the fixpoint iteration


_MOVES = (Max, Min, Sort, CumMax, Expand, Transpose, Reshape, Cut, Flip, Pick, Take)

# An equation, and those of its dims that are past the end; the others are anywhere.
_Place = tuple[str, frozenset[str]]


@dataclass(frozen=True)
class PostExitValues:
    """The values of equations where `dim` is past the end of all rows, for readers to rely on.

    A read is past the end along the dims whose index mentions one that is: of x[t_,t] that reads
    y[t,t_], `t_` past the end is the first dim of x and the second of y.
    """

    graph: Graph
    ended: EarlyExit
    dim: str
    known: dict[_Place, Past] = field(default_factory=dict[_Place, Past])

    def __post_init__(self) -> None:
        """Iterate to a fixpoint: all places are open at first, then computed of their operands.

        Sources come first; the places of a cycle are computed until none changes.
        """
        every = self.graph.nodes.values()
        places = [(n.name, frozenset({self.dim})) for n in every if self.dim in n.domain]
        self.known.update(dict.fromkeys(places, _OPEN))
        for place in places:  # grows
            new = [p for p in self.read(place) if p not in self.known]
            places += dict.fromkeys(new)
            self.known.update(dict.fromkeys(new, _OPEN))
        for part in components(places, self.read):
            while any([self.recompute(place) for place in part]):
                pass

    def read(self, place: _Place) -> list[_Place]:
        """The places that an equation reads."""
        name, past = place
        return [self.at(a, past) for a in self.graph[name].args]

    def at(self, ref: Ref, past: frozenset[str]) -> _Place:
        """The place of a read, by an equation whose dims `past` are past the end."""
        pairs = zip(self.graph[ref.name].domain.dims, ref.index, strict=True)
        return ref.name, frozenset(d for d, e in pairs if index_symbols(e) & past)

    def recompute(self, place: _Place) -> bool:
        """Recompute a place. Has its value changed?"""
        old, new = self.known[place], self.compute(self.graph[place[0]], place[1])
        if isinstance(new, float) and isnan(new):
            new = nan  # the same object, as NaN != NaN would look like a change
        if new is old or new == old or old is None:
            return False
        self.known[place] = new if old is _OPEN else None
        return True

    def value(self, name: str) -> Past:
        """The value of an equation at every point past the end; None if it is not known."""
        found = self.known.get((name, frozenset({self.dim})))
        return None if found is _OPEN else found

    def compute(self, node: Node, past: frozenset[str]) -> Past:
        xs = [self.known[self.at(a, past)] for a in node.args]
        match node.op:
            case Const(value=value):
                return value
            case Going():  # of other rows, which may go on
                return False if node.name == self.ended.going and past else None
            case Merge():
                return self.merge(node, past, xs)
            case Where():
                return self.where(node, past, xs)
            case _:
                return self.applied(node, xs)

    def merge(self, node: Node, past: frozenset[str], xs: list[Past]) -> Past:
        if past and any(a.name == self.ended.going for a in node.args):
            return False
        if any(self.keeps(self.graph[a.name], node.name, past) for a in node.args):
            return LastValue(node.name)
        found = {x for x in xs if x is not _OPEN}
        if not found:
            return _OPEN
        return found.pop() if len(found) == 1 else None

    def keeps(self, node: Node, name: str, past: frozenset[str]) -> bool:
        """Is it where(alive, .., name[t-1])?"""
        return isinstance(node.op, Where) and self.before(node.args[2], past) == name

    def before(self, ref: Ref, past: frozenset[str]) -> str:
        """The equation that a read takes from the point before; empty if it reads another point."""
        at = dict(zip(self.graph[ref.name].domain.dims, ref.index, strict=True))
        shifts = [is_shift(e, d) for d, e in at.items() if d in past and not isinstance(e, Slice)]
        return ref.name if -1 in shifts else ""

    def where(self, node: Node, past: frozenset[str], xs: list[Past]) -> Past:
        holds, x, y = xs
        if holds is _OPEN:
            return _OPEN
        if holds is None or isinstance(holds, LastValue):
            return x if y in (x, _OPEN) else y if x is _OPEN else None
        if not holds and (name := self.before(node.args[2], past)):
            return LastValue(name)
        return x if holds else y

    def applied(self, node: Node, xs: list[Past]) -> Past:
        xs = xs[:1] if isinstance(node.op, (Take, Pick)) else xs  # any element
        numbers = [x for x in xs if isinstance(x, float | int)]
        if isinstance(node.op, (Einsum, Mul, And)) and 0 in numbers:
            return 0.0
        if _OPEN in xs:
            return _OPEN
        if len(numbers) != len(xs) or not xs or not isinstance(node.type, Type):
            return None
        if isinstance(node.op, Sum) or (isinstance(node.op, Pick) and node.op.zero):
            return 0.0 if numbers[0] == 0 else None
        if isinstance(node.op, _MOVES):
            return numbers[0]
        if not isinstance(node.op, Elementwise):
            return None
        with np.errstate(all="ignore"):
            types = [NUMPY_NAME[self.graph[a.name].type.dtype] for a in node.args]
            arrays = [np.asarray(x, t) for x, t in zip(numbers, types, strict=True)]
            return node.op.apply(np, *arrays).item()
