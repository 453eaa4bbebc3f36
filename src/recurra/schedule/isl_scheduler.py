"""The schedule that isl's scheduler finds, as our tree of loops.

    S3[i,t] → [i, t + 4]      for i: for t: .. x@-4 ..

isl (Pluto's algorithm: Bondhugula et al., 2008) gets validity constraints (every read comes after
the value it reads) and proximity constraints (the latest point of each read). Trees whose levels
are a dim, up or down, plus a constant become ours; statements of one level that run at fixed times,
or at times that do not overlap, are put one after the other. Other trees are refused with an error,
and every result is checked by `violations`.

A statement whose only source is at the same point may run when that does, so isl schedules both as
one: its time grows with more than the square of their number. If it still takes too long,
statements whose only reader is at the same point run with that reader, which leaves fewer choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from recurra.cost.thresholds import ISL_MIN_BOUND, MAX_ISL_SECONDS
from recurra.errors import ScheduleError
from recurra.ir.expr import TRUE, Expr, evaluate
from recurra.ir.graph import Graph
from recurra.ir.order import components
from recurra.ir.statement import StatementGraph
from recurra.ir.types import is_shift
from recurra.polyhedral import isl, isl_schedules
from recurra.schedule.allen_kennedy import fold_to_reduction, misplaced_folds
from recurra.schedule.dependences import Dependence, real_dependences
from recurra.schedule.legality import violations
from recurra.schedule.lower_values import lower_values
from recurra.schedule.tree import Exec, Item, Loop, Schedule, number_loops


def schedule_by_isl(
    graph: Graph, sizes: Mapping[str, int], guarded: Mapping[str, Expr] = MappingProxyType({})
) -> Schedule:
    """Return isl's schedule; raises ScheduleError if there is none, it is no nest of loops, or isl
    takes too long.
    """
    while True:
        schedule = _for_any_bounds(graph, sizes, guarded)
        folds = misplaced_folds(schedule, sizes)
        if not folds:
            break
        graph = graph.update(map(fold_to_reduction, folds))
    broken = violations(schedule, sizes)
    if broken:
        raise _refused(f"it would run {broken[0].sink} before {broken[0].ref} is there")
    return schedule


def _for_any_bounds(
    graph: Graph, sizes: Mapping[str, int], guarded: Mapping[str, Expr]
) -> Schedule:
    """The schedule for bounds at least about as large as these; if there is none, for exactly
    these."""
    try:
        try:
            similar = {n: f"{n} >= {min(v, ISL_MIN_BOUND)}" for n, v in sizes.items()}
            return _schedule(graph, sizes, similar, guarded)
        except ScheduleError:
            return _schedule(graph, sizes, {n: f"{n} = {v}" for n, v in sizes.items()}, guarded)
    except TimeoutError as e:
        raise _refused(f"{e} for {len(graph.nodes)} equations", "") from None


def _schedule(
    graph: Graph, sizes: Mapping[str, int], known: Mapping[str, str], guarded: Mapping[str, Expr]
) -> Schedule:
    """The schedule for bounds of which isl knows the constraints `known`."""
    lowered = lower_values(graph, sizes, cuts={}, guards=guarded)
    edges = real_dependences(lowered)
    try:
        tree, number = _isl_tree(lowered, edges, known, by_reader=False)
    except TimeoutError:
        tree, number = _isl_tree(lowered, edges, known, by_reader=True)
    nest = _Nest(lowered, sizes, number, edges)
    empty = [s for s in number if any(r.size(sizes) < 1 for r in lowered[s].domain)]
    items = nest.items(tree, [s for s in number if s not in empty])  # isl drops what never runs
    every_item = (*items, *(nest.single(s, {}) for s in empty))
    return Schedule(graph, lowered, number_loops(every_item))


def _isl_tree(
    graph: StatementGraph, edges: Sequence[Dependence], known: Mapping[str, str], by_reader: bool
) -> tuple[isl_schedules.Band | isl_schedules.ScheduleSequence | None, dict[str, int]]:
    """isl's tree, and the number in it of each statement, which is its leader's."""
    leader = _leaders(graph, edges, by_reader)
    leaders = [s for s, first in leader.items() if s == first]
    number = {s: leaders.index(first) for s, first in leader.items()}
    domains = [(graph[s].domain.dims, isl.box_constraints(graph[s].domain)) for s in leaders]
    ties = [
        (number[e.source], number[e.sink], e)
        for e in edges
        if number[e.source] != number[e.sink] or not _is_same_point(graph, e)
    ]
    try:
        reads = [(source, sink, _constraints(graph, e)) for source, sink, e in ties]
        return isl_schedules.scheduled(domains, reads, known, MAX_ISL_SECONDS), number
    except ValueError as e:
        raise _refused(str(e)) from None


def _leaders(graph: StatementGraph, edges: Sequence[Dependence], by_reader: bool) -> dict[str, str]:
    """Map each statement to the one at whose time it runs, itself or another.

    A statement follows its only source, or its only reader, if every such read is of the same
    point: the other's order then serves both.
    """
    leader = {s: s for s in graph.statements}

    def follows() -> tuple[str, str] | None:
        neighbors: dict[tuple[bool, str], list[tuple[str, Dependence]]] = {}
        for e in edges:
            a, b = leader[e.source], leader[e.sink]
            if a != b or not _is_same_point(graph, e):
                if by_reader:
                    neighbors.setdefault((True, a), []).append((b, e))
                neighbors.setdefault((False, b), []).append((a, e))
        for (_, s), others in neighbors.items():
            other = others[0][0]
            if other != s and all(x == other and _is_same_point(graph, e) for x, e in others):
                return s, other
        return None

    while (pair := follows()) is not None:
        one, other = pair
        leader = {s: other if x == one else x for s, x in leader.items()}
    return leader


def _is_same_point(graph: StatementGraph, dependence: Dependence) -> bool:
    """Tell whether each point of the sink reads its own point of the source, over one box."""
    source, sink = graph[dependence.source].domain, graph[dependence.sink].domain
    return dependence.where == TRUE and source == sink and dependence.index == source.identity


def _constraints(graph: StatementGraph, dependence: Dependence) -> list[str]:
    """The pairs of points of a dependence, its source's dims primed."""
    source, sink = graph[dependence.source].domain, graph[dependence.sink].domain
    chosen = [] if dependence.where == TRUE else [isl.isl_text(dependence.where)]
    index = isl.index_constraints(dependence.index, [f"{d}'" for d in source.dims])
    return [*isl.box_constraints(sink), *isl.box_constraints(source, "'"), *chosen, *index]


TREES = "; our trees are loops over one dim, up or down, shifted by constants"


def _refused(why: str, trees: str = TREES) -> ScheduleError:
    return ScheduleError(
        "isl's schedule cannot be taken",
        facts=f"{why}{trees}",
        hint="leave scheduler='isl' out: the own scheduler takes every legal program",
    )


@dataclass(frozen=True)
class _Time:
    """The time of a statement at one level: (dim · step + shift) · scale + rest, or only `rest`."""

    dim: str | None
    step: int
    shift: int
    scale: int
    rest: int
    first: int
    last: int

    @property
    def kind(self) -> tuple[str | None, int, int, int]:
        """The traits that statements of one loop share."""
        return self.dim, self.step, self.scale, self.rest


Around = Mapping[str, Mapping[str, _Time]]  # by dim of the loops around: times of statements


@dataclass
class _Nest:
    """The conversion of isl's tree to items."""

    graph: StatementGraph
    sizes: Mapping[str, int]
    number: Mapping[str, int]  # of each statement's leader in isl's tree
    edges: list[Dependence]

    def items(
        self,
        tree: isl_schedules.Band | isl_schedules.ScheduleSequence | None,
        stmts: Sequence[str],
        around: Around = MappingProxyType({}),
    ) -> tuple[Item, ...]:
        """The items that run `stmts` inside of loops `around`."""
        match tree:
            case None:
                feeds: dict[str, list[str]] = {s: [] for s in stmts}
                for e in self.edges:
                    if {e.source, e.sink} <= feeds.keys() and _is_same_point(self.graph, e):
                        feeds[e.sink].append(e.source)
                order = components(stmts, feeds.__getitem__)
                return tuple(self.single(s, around) for part in order for s in part)
            case isl_schedules.ScheduleSequence(parts=parts):
                out: list[Item] = []
                for numbers, inside in parts:
                    out += self.items(
                        inside, [s for s in stmts if self.number[s] in numbers], around
                    )
                return tuple(out)
            case isl_schedules.Band(levels=levels, inside=inside):
                return self.level(levels, inside, stmts, around)

    def single(self, text: str, around: Around) -> Item:
        """One statement; isl leaves out the dims that have one point."""
        item: Item = Exec(text)
        for r in self.graph[text].domain:
            if r.dim not in around:
                if r.size(self.sizes) > 1:
                    raise _refused(f"{text} would run over {r.dim} at one time")
                item = Loop(r.dim, 1, ((text, 0),), (item,))
        return item

    def level(
        self,
        levels: Sequence[Mapping[int, isl_schedules.Time]],
        inside: isl_schedules.Band | isl_schedules.ScheduleSequence | None,
        stmts: Sequence[str],
        around: Around,
    ) -> tuple[Item, ...]:
        """The first level as loops, and the statements before, between and after them."""
        if not levels:
            return self.items(inside, stmts, around)
        at = {s: self.time(s, levels[0][self.number[s]]) for s in stmts}
        out: list[Item] = []
        for group in self.in_order(self.groups(at), at, around):
            dim, step = at[group[0]].dim, at[group[0]].step
            more = around if dim is None else {**around, dim: at}
            body = self.level(levels[1:], inside, group, more)
            if dim is None:
                out += body
                continue
            base = min(at[s].shift for s in group)
            shifts = tuple((s, at[s].shift - base) for s in group)
            out.append(Loop(dim, step, shifts, body))
        return tuple(out)

    def time(self, statement: str, time: isl_schedules.Time) -> _Time:
        """The time of a statement for these bounds."""
        domain = self.graph[statement].domain
        dims = [(n, c) for n, c in time.factors if n in domain]
        const = time.const + sum(c * self.sizes[n] for n, c in time.factors if n not in domain)
        if not dims:
            return _Time(None, 1, 0, 1, const, const, const)
        if len(dims) > 1:
            sums = " + ".join(f"{c}*{n}" for n, c in dims)
            raise _refused(f"{statement} would run at time {sums}")
        ((dim, factor),) = dims
        r = domain[dim]
        ends = (evaluate(r.lo, self.sizes), evaluate(r.hi, self.sizes) - 1)
        first, last = sorted(factor * e + const for e in ends)
        shift, rest = divmod(const, abs(factor))
        return _Time(dim, 1 if factor > 0 else -1, shift, abs(factor), rest, first, last)

    def groups(self, at: Mapping[str, _Time]) -> list[list[str]]:
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

    def in_order(
        self, groups: list[list[str]], at: dict[str, _Time], around: Around
    ) -> Iterator[list[str]]:
        """Producers first; groups that read each other share a loop if they have the same dim."""
        of = {s: k for k, g in enumerate(groups) for s in g}
        feeds: dict[int, set[int]] = {k: set() for k in range(len(groups))}
        for e in self.edges:
            a, b = of.get(e.source), of.get(e.sink)
            if a is not None and b is not None and a != b and not self.carried(e, around):
                feeds[b].add(a)
        for part in components(list(feeds), lambda k: sorted(feeds[k])):
            every = [s for s in at if of.get(s) in part]
            fixed = [s for s in every if at[s].dim is None]
            if len({at[s].kind for s in every}) == 1:
                yield every
            elif any(len(groups[of[s]]) > 1 for s in fixed):  # order these one by one
                moving = [groups[k] for k in part if groups[k][0] not in fixed]
                yield from self.in_order([*([s] for s in fixed), *moving], at, around)
            else:
                self.join(every, fixed, at)
                yield every

    def carried(self, dependence: Dependence, around: Around) -> bool:
        """Tell whether an earlier iteration of a loop around computes what a dependence needs."""
        index = dict(zip(self.graph[dependence.source].domain.dims, dependence.index, strict=True))
        for dim, at in around.items():
            ahead = is_shift(index[dim], dim) if dim in index else None
            source, sink = at[dependence.source], at[dependence.sink]
            if ahead is not None and ahead * sink.step + source.shift < sink.shift:
                return True
        return False

    def join(self, every: list[str], fixed: list[str], at: dict[str, _Time]) -> None:
        """Move statements at fixed times, which are points of the dim of the others' loop, into it.

        Raises ScheduleError if they are not such points, or the others have several loops.
        """
        moving = [s for s in every if s not in fixed]
        loop = at[moving[0]]
        assert loop.dim is not None
        misfits = [s for s in moving if at[s].kind != loop.kind]
        for s in fixed:
            domain, w = self.graph[s].domain, at[s]
            iteration, rest = divmod(w.first - loop.rest, loop.scale)
            if rest or loop.dim not in domain or domain[loop.dim].size(self.sizes) != 1:
                misfits.append(s)
                continue
            shift = iteration - loop.step * evaluate(domain[loop.dim].lo, self.sizes)
            at[s] = replace(loop, shift=shift, first=w.first, last=w.last)
        if misfits:
            turns = "would run in one turn of" if misfits[0] in fixed else "runs otherwise in"
            raise _refused(f"{misfits[0]} {turns} the loop over {loop.dim} of {moving[0]}")
