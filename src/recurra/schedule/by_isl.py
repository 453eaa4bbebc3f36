"""by_isl: the schedule that isl's scheduler finds, as our tree of loops.

    S3[i,t] → [i, t + 4]      for i: for t: .. x@-4 ..

isl (Pluto's algorithm: Bondhugula et al., 2008) is given what must hold (every read comes after
what it reads) and what should be near (the latest point that a read asks for). Of its trees those
become ours whose levels are a dim up or down plus a constant; statements of one level that are at
fixed times, or at times that never meet, are put one after the other. All else is refused aloud,
and whatever comes out is looked at again by `legal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from recurra.cost.thresholds import ISL_MIN_BOUND, MAX_ISL_SECONDS
from recurra.errors import ScheduleError
from recurra.ir.expr import TRUE, Expr, evaluate
from recurra.ir.graph import Graph
from recurra.ir.order import components
from recurra.ir.statement import StatementGraph
from recurra.schedule.dependences import Dependence, real_dependences
from recurra.schedule.legal import violations
from recurra.schedule.levels import stored, stray
from recurra.schedule.lower_values import lower_values
from recurra.schedule.tree import Exec, Item, Loop, Schedule, number_loops
from recurra.sets import isl


def schedule_by_isl(
    graph: Graph, sizes: Mapping[str, int], guarded: Mapping[str, Expr] = MappingProxyType({})
) -> Schedule:
    """isl's schedule; raises ScheduleError where it finds none, or none that is a nest of loops, or
    takes too long.
    """
    while True:
        found = _found(graph, sizes, guarded)
        apart = stray(found, sizes)
        if not apart:
            break
        graph = graph.update(map(stored, apart))
    broken = violations(found, sizes)
    if broken:
        raise _refused(f"it would run {broken[0].sink} before {broken[0].ref} is there")
    return found


def _found(graph: Graph, sizes: Mapping[str, int], guarded: Mapping[str, Expr]) -> Schedule:
    """The schedule for bounds like these; if there is none, that for these bounds alone."""
    try:
        try:
            near = {n: f"{n} >= {min(v, ISL_MIN_BOUND)}" for n, v in sizes.items()}
            return _once(graph, sizes, near, guarded)
        except ScheduleError:
            return _once(graph, sizes, {n: f"{n} = {v}" for n, v in sizes.items()}, guarded)
    except TimeoutError as e:
        raise _refused(f"{e} for {len(graph.nodes)} equations", "") from None


def _once(
    graph: Graph, sizes: Mapping[str, int], known: Mapping[str, str], guarded: Mapping[str, Expr]
) -> Schedule:
    """The schedule for bounds of which isl is told what is `known`."""
    lowered = lower_values(graph, sizes, cuts={}, guards=guarded)
    every = list(lowered.statements)
    place = {s: k for k, s in enumerate(every)}
    edges = real_dependences(lowered)
    domains = [(s.domain.dims, isl.inside(s.domain)) for s in lowered.statements.values()]
    try:
        ties = [(place[e.source], place[e.sink], _tie(lowered, e)) for e in edges]
        tree = isl.scheduled(domains, ties, known, MAX_ISL_SECONDS)
    except ValueError as e:
        raise _refused(str(e)) from None
    nest = _Nest(lowered, sizes, every, edges)
    empty = [s for s in every if any(r.size(sizes) < 1 for r in lowered[s].domain)]
    items = nest.items(tree, [s for s in every if s not in empty])  # isl forgets what never runs
    every_item = (*items, *(nest.single(s, frozenset()) for s in empty))
    return Schedule(graph, lowered, number_loops(every_item))


def _tie(graph: StatementGraph, e: Dependence) -> list[str]:
    """The pairs of points of a dependence, its source's dims primed."""
    source, sink = graph[e.source].domain, graph[e.sink].domain
    chosen = [] if e.where == TRUE else [isl.text(e.where)]
    index = isl.index_constraints(e.index, [f"{d}'" for d in source.dims])
    return [*isl.inside(sink), *isl.inside(source, "'"), *chosen, *index]


TREES = "; our trees are loops over one dim, up or down, shifted by constants"


def _refused(why: str, trees: str = TREES) -> ScheduleError:
    return ScheduleError(
        "isl's schedule cannot be taken",
        facts=f"{why}{trees}",
        hint="leave scheduler='isl' out: the own scheduler takes every legal program",
    )


@dataclass(frozen=True)
class _When:
    """A statement at one level: (dim · step + shift) · scale + rest; without a dim at `rest`."""

    dim: str | None
    step: int
    shift: int
    scale: int
    rest: int
    first: int
    last: int

    @property
    def kind(self) -> tuple[str | None, int, int, int]:
        """What statements of one loop have in common."""
        return self.dim, self.step, self.scale, self.rest


@dataclass
class _Nest:
    """Items from isl's tree."""

    graph: StatementGraph
    sizes: Mapping[str, int]
    every: list[str]
    edges: list[Dependence]

    def items(
        self,
        tree: isl.Band | isl.Parts | None,
        stmts: Sequence[str],
        around: frozenset[str] = frozenset(),
    ) -> tuple[Item, ...]:
        """What runs `stmts` inside of loops `around`."""
        match tree:
            case None:
                return tuple(self.single(s, around) for s in stmts)
            case isl.Parts(parts=parts):
                out: list[Item] = []
                for numbers, inside in parts:
                    mine = {self.every[k] for k in numbers}
                    out += self.items(inside, [s for s in stmts if s in mine], around)
                return tuple(out)
            case isl.Band(levels=levels, inside=inside):
                return self.level(levels, inside, stmts, around)

    def single(self, s: str, around: frozenset[str]) -> Item:
        """One statement; isl leaves out the dims that have one point."""
        item: Item = Exec(s)
        for r in self.graph[s].domain:
            if r.dim not in around:
                if r.size(self.sizes) > 1:
                    raise _refused(f"{s} would run over {r.dim} at one time")
                item = Loop(r.dim, 1, ((s, 0),), (item,))
        return item

    def level(
        self,
        levels: Sequence[Mapping[int, isl.Time]],
        inside: isl.Band | isl.Parts | None,
        stmts: Sequence[str],
        around: frozenset[str],
    ) -> tuple[Item, ...]:
        """The first level as loops, and what stands before, between and after them."""
        if not levels:
            return self.items(inside, stmts, around)
        number = {s: k for k, s in enumerate(self.every)}
        at = {s: self.when(s, levels[0][number[s]]) for s in stmts}
        out: list[Item] = []
        for group in self.in_order(self.groups(at), at):
            dim, step = at[group[0]].dim, at[group[0]].step
            more = around if dim is None else around | {dim}
            body = self.level(levels[1:], inside, group, more)
            if dim is None:
                out += body
                continue
            base = min(at[s].shift for s in group)
            shifts = tuple((s, at[s].shift - base) for s in group)
            out.append(Loop(dim, step, shifts, body))
        return tuple(out)

    def when(self, statement: str, t: isl.Time) -> _When:
        """The time of a statement for these bounds."""
        domain = self.graph[statement].domain
        dims = [(n, c) for n, c in t.factors if n in domain]
        const = t.const + sum(c * self.sizes[n] for n, c in t.factors if n not in domain)
        if not dims:
            return _When(None, 1, 0, 1, const, const, const)
        if len(dims) > 1:
            sums = " + ".join(f"{c}*{n}" for n, c in dims)
            raise _refused(f"{statement} would run at time {sums}")
        ((dim, factor),) = dims
        r = domain[dim]
        ends = (evaluate(r.lo, self.sizes), evaluate(r.hi, self.sizes) - 1)
        first, last = sorted(factor * e + const for e in ends)
        shift, rest = divmod(const, abs(factor))
        return _When(dim, 1 if factor > 0 else -1, shift, abs(factor), rest, first, last)

    def groups(self, at: Mapping[str, _When]) -> list[list[str]]:
        """Statements that share a loop: of one dim and direction, at times that meet."""
        kinds: dict[tuple[str | None, int, int, int], list[str]] = {}
        for s, w in at.items():
            kinds.setdefault(w.kind, []).append(s)
        out: list[list[str]] = []
        for (dim, *_), stmts in sorted(kinds.items(), key=lambda k: min(at[s].first for s in k[1])):
            if dim is None:
                out.append(stmts)
                continue
            end = None
            for s in sorted(stmts, key=lambda s: at[s].first):
                if end is None or at[s].first > end:
                    out.append([])
                    end = at[s].last
                out[-1].append(s)
                end = max(end, at[s].last)
        order = {s: k for k, s in enumerate(at)}
        return [sorted(g, key=order.__getitem__) for g in out]

    def in_order(self, groups: list[list[str]], at: Mapping[str, _When]) -> Iterable[list[str]]:
        """Producers first; groups that need each other share a loop, where they have one dim."""
        of = {s: k for k, g in enumerate(groups) for s in g}
        feeds: dict[int, set[int]] = {k: set() for k in range(len(groups))}
        for e in self.edges:
            a, b = of.get(e.source), of.get(e.sink)
            if a is not None and b is not None and a != b:
                feeds[b].add(a)
        out: list[list[str]] = []
        for part in components(list(feeds), lambda k: sorted(feeds[k])):
            every = [s for s in at if of[s] in part]
            if len({at[s].kind for s in every}) > 1:
                names = [groups[k][0] for k in part[:2]]
                raise _refused(f"{names[0]} and {names[1]} share a loop, but have no dim in common")
            out.append(every)
        return out
