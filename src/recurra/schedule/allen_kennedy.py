"""The schedule of a graph, loop by loop from the outside in (Allen and Kennedy, 1987).

At each level the first dim, in the user's order, that is legal for all becomes a loop; cycles fix
its direction, unbounded reads of the future split it, bounded ones shift it (retiming.py). What
the loop carries is dropped and the inside is ordered in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from recurra.analysis.diagnostics import no_order
from recurra.analysis.exact_demand import demanded_exactly
from recurra.cost.thresholds import MAX_CUT_ROUNDS
from recurra.ir.bind import bind_bounds
from recurra.ir.expr import TRUE, Expr, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.order import components, topological
from recurra.ir.statement import Statement, StatementGraph
from recurra.ir.types import Tuple
from recurra.ops.control import Call, Merge
from recurra.ops.reduction import REDUCTION, Fold
from recurra.polyhedral.dependence_distance import Lag, direction, lag
from recurra.polyhedral.extent import varies
from recurra.schedule.dependences import Dependence, real_dependences
from recurra.schedule.lower_values import Cut, Cuts, lower_values
from recurra.schedule.retiming import retime
from recurra.schedule.sinking import LoopPlacement
from recurra.schedule.tree import Exec, Item, Loop, Schedule, number_loops
from recurra.transforms.reductions_to_accumulators import streams


class NoOrder(Exception):
    """Equations that no loop orders, what each reads of the others, and what was tried."""

    def __init__(self, equations: Sequence[str], ties: Sequence[tuple[str, Ref]], tried: str):
        super().__init__(tried)
        self.equations, self.ties, self.tried = equations, ties, tried


def schedule(
    graph: Graph,
    sizes: Mapping[str, int],
    axes: frozenset[str] = frozenset(),
    cuts: Cuts = MappingProxyType({}),
    guarded: Mapping[str, Expr] = MappingProxyType({}),
) -> Schedule:
    """An order for every point of every equation; raises ScheduleError where there is none.

    Dims in `axes` are about to become axes: no loop is made for them. Equations in `cuts` are
    several statements, and so are those that have no order otherwise: a branch, or a point that is
    read by itself, waits for what it reads, not for what the others read. Where that is not enough,
    they run at the points that are asked for. Those that are `guarded` run under a condition.
    """
    told: NoOrder | None = None
    for _ in range(MAX_CUT_ROUNDS + 1):
        try:
            return _for_any_bounds(graph, sizes, axes, cuts, guarded)
        except NoOrder as error:
            if told is None or not {*told.equations} & {
                *error.equations
            }:  # those before have an order
                told = error
            finer = refined(graph, cuts, error)
            few = asked_for(graph, sizes, axes, error.equations) if finer == cuts else guarded
            if finer == cuts and few.items() <= guarded.items():
                break
            cuts, guarded = finer, {**guarded, **few}
    assert told is not None
    raise no_order(graph, told.equations, told.ties, told.tried)


def refined(graph: Graph, cuts: Cuts, error: NoOrder) -> Cuts:
    """Cuts of what has no order: into branches first, then at points that are read alone."""
    branching = {n for n in error.equations if isinstance(graph[n].op, Merge)}
    if not branching <= cuts.keys():
        return {**dict.fromkeys(branching, frozenset[Cut]()), **cuts}
    finer = dict(cuts)
    for name, index in ((ref.name, ref.index) for _, ref in error.ties):
        if name not in graph.nodes or not graph[name].op.pure:
            continue
        for r, e in zip(graph[name].domain, index, strict=True):
            if isinstance(e, Slice) or symbols(e) & graph.declared.keys() or r.is_point:
                continue
            finer[name] = finer.get(name, frozenset()) | {(r.dim, e)}
    return finer


def asked_for(
    graph: Graph, sizes: Mapping[str, int], axes: frozenset[str], names: Iterable[str]
) -> Mapping[str, Expr]:
    """The conditions under which equations of these names are asked for, where loops can tell."""
    found = demanded_exactly(graph, sizes)
    loops = {n: c for n, c in found.items() if not symbols(c) & axes and graph[n].op.pure}
    return {n: loops[n] for n in names if n in loops}


def _for_any_bounds(
    graph: Graph,
    sizes: Mapping[str, int],
    axes: frozenset[str],
    cuts: Cuts,
    guarded: Mapping[str, Expr],
) -> Schedule:
    """The schedule by what is known for all bounds, or, where that is not enough, for these."""
    try:
        return _ordered(graph, graph, sizes, axes, cuts, guarded)
    except NoOrder:
        with suppress(NoOrder):
            return _ordered(graph, bind_bounds(graph, sizes), sizes, axes, cuts, guarded)
        raise


def _ordered(
    graph: Graph,
    known: Graph,
    sizes: Mapping[str, int],
    axes: frozenset[str],
    cuts: Cuts,
    guarded: Mapping[str, Expr],
) -> Schedule:
    """The schedule of a graph, by the dependences of what is `known` of it."""
    while True:
        work = _Levels(lower_values(known, sizes, cuts, guarded), sizes)
        every = list(work.graph.statements)
        left = {s: set(work.graph[s].domain.dims) - axes for s in every}
        items = work.order(every, real_dependences(work.graph), left)
        own = work.graph if known is graph else lower_values(graph, sizes, cuts, guarded)
        found = Schedule(graph, own, number_loops(items))
        apart = stray(found, sizes)
        if not apart:
            return found
        now = graph.update(stored(graph[n.name]) for n in apart)
        same = known is graph
        known = now if same else known.update(stored(known[n.name]) for n in apart)
        graph = now


def stored(node: Node) -> Node:
    """A fold as a reduction, which reads all of its operand when it runs."""
    assert isinstance(node.op, Fold)
    return replace(node, op=REDUCTION[node.op.monoid_of](axes=tuple(range(node.op.rank))))


def stray(schedule: Schedule, sizes: Mapping[str, int]) -> list[Node]:
    """Folds that read another point than their own, or whose steps run in other loops than they:
    one running value would serve several points."""
    paths, graph = schedule.paths(), schedule.graph
    out: list[Node] = []
    for n in graph.nodes.values():
        if isinstance(n.op, Fold):
            (a,) = n.args
            mine = [x for x in paths[n.name] if x[1] is not None]
            adds = schedule.statements.running(n.name)
            together = adds is not None and mine == list(paths[adds][: len(mine)])
            if not together or not streams(n, a, graph[a.name], sizes):
                out.append(n)
    return out


@dataclass
class _Levels:
    graph: StatementGraph
    sizes: Mapping[str, int]
    dims: tuple[str, ...] = ()
    lags: dict[tuple[Dependence, str], Lag | None] = field(default_factory=dict)
    next_step: set[tuple[str, str]] = field(default_factory=set)  # source -> sink, one step later
    later: set[tuple[str, str]] = field(default_factory=set)  # source -> sink, through a store
    late: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shifts in the loops around

    def __post_init__(self) -> None:
        self.dims = tuple(self.graph.declared)
        self.place = {s: k for k, s in enumerate(self.graph.statements)}

    def lag(self, dependence: Dependence, dim: str) -> Lag | None:
        """The lag of a dependence along a dim; None if one end lacks the dim."""
        key = (dependence, dim)
        if key not in self.lags:
            source, sink = self.graph[dependence.source].domain, self.graph[dependence.sink].domain
            if dim not in source or dim not in sink:
                self.lags[key] = None
            else:
                self.lags[key] = lag(
                    dim, dependence.index[source.dims.index(dim)], sink, dependence.where
                )
        return self.lags[key]

    def order(
        self, stmts: list[str], edges: list[Dependence], left: dict[str, set[str]]
    ) -> tuple[Item, ...]:
        """Items that run `stmts` under `edges`; `left` are the dims still to loop over."""
        todo = [d for d in self.dims if any(d in left[s] for s in stmts)]
        if not todo:
            return tuple(Exec(s) for s in self.sequence(stmts, edges))
        for d in todo:
            groups = self.groups(stmts, edges, left, d)
            if groups is not None:
                return tuple(it for g in groups for it in self.expand(g, edges, left, d))
        parts = self.parts(stmts, edges)
        if len(parts) == 1:
            raise self.no_order(stmts, edges, todo)
        return tuple(it for p in parts for it in self.order(p, self.within(p, edges), left))

    def within(self, stmts: Sequence[str], edges: list[Dependence]) -> list[Dependence]:
        inside = set(stmts)
        return [e for e in edges if e.sink in inside and e.source in inside]

    def parts(self, stmts: list[str], edges: list[Dependence]) -> list[list[str]]:
        """Strongly connected parts, producers first."""
        feeds: dict[str, list[str]] = {s: [] for s in stmts}
        for e in edges:
            feeds[e.sink].append(e.source)
        return components(stmts, feeds.__getitem__)

    def sequence(self, stmts: list[str], edges: list[Dependence]) -> list[str]:
        """A plain order of statements at one point, as the emission contract wants it.

        What the next step reads is read before it is overwritten: it travels as a variable. What
        later steps read is written first: a store has one version at a time.
        """
        feeds: dict[str, set[str]] = {s: set() for s in stmts}
        for e in edges:
            feeds[e.sink].add(e.source)
        for part in components(stmts, lambda s: feeds[s]):
            if len(part) > 1 or part[0] in feeds[part[0]]:
                raise self.no_order(part, self.within(part, edges), [])
        for wishes in ({(b, a) for a, b in self.next_step}, self.later):
            feeds = _wished(stmts, feeds, wishes)
        found = topological(sorted(stmts, key=self.place.__getitem__), feeds.__getitem__)
        apart = self.graph.guarded or any(self.is_call(s) for s in stmts)
        return self.gathered(found, feeds) if apart else found

    def gathered(self, stmts: list[str], feeds: Mapping[str, set[str]]) -> list[str]:
        """The same order, but that host calls that wait for none of each other follow each other if
        they can, what is between them is one launch, and so do statements under one condition."""
        out: list[str] = []
        left, calls = dict.fromkeys(stmts), True
        while left:
            ready = [s for s in left if not feeds[s] & left.keys()]
            alike = [s for s in ready if self.is_call(s) == calls] or ready
            last = self.graph[out[-1]].conditions if out else (TRUE, ())
            s = next((s for s in alike if self.graph[s].conditions == last), alike[0])
            out.append(s)
            calls = self.is_call(s)
            del left[s]
        return out

    def is_call(self, statement: str) -> bool:
        return isinstance(self.graph[statement].op, Call)

    def groups(
        self, stmts: list[str], edges: list[Dependence], left: dict[str, set[str]], dim: str
    ) -> list[_Group] | None:
        """Loops over `dim` and what stands between them; None where the dim is not legal here."""
        parts = self.parts(stmts, edges)
        of = {s: k for k, p in enumerate(parts) for s in p}
        inner: list[list[Dependence]] = [[] for _ in parts]
        into: list[list[Dependence]] = [[] for _ in parts]
        for e in edges:
            (inner if of[e.sink] == of[e.source] else into)[of[e.sink]].append(e)
        kinds: list[int | None] = []  # 0: no loop, +1, -1; None: either direction
        for k, p in enumerate(parts):
            kind = self.direction(p, inner[k], left, dim)
            if kind == "illegal":
                return None
            kinds.append(kind)
        level: list[int] = []
        free = {
            k
            for k, p in enumerate(parts)
            if len(p) == 1 and not kinds[k] and self.movable(self.graph[p[0]])
        }
        for k in range(len(parts)):
            if kinds[k] is None:
                kinds[k] = self.prefer(into[k], of, kinds, level, dim)
            level.append(
                max(
                    (
                        level[of[e.source]] + self.apart(e, kinds[of[e.source]], kinds[k], dim)
                        for e in into[k]
                    ),
                    default=0,
                )
            )
        place = LoopPlacement(
            edges=[e for es in into for e in es],
            level={s: level[k] for s, k in of.items()},
            kind={s: kinds[k] for s, k in of.items()},
            free=[parts[k][0] for k in reversed(range(len(parts))) if k in free],
            weight=self.weight,
            apart=lambda e, source, sink: self.apart(e, source, sink, dim),
        )
        place.late()
        for k in free:
            level[k], kinds[k] = place.level[parts[k][0]], place.kind[parts[k][0]]
        order = (0, 1, -1)  # what has no loop is there for the loops of its level
        key = [
            (level[k], order.index(kinds[k] or 0), self.ends(p[0], dim))
            for k, p in enumerate(parts)
        ]
        return [
            _Group(order[x[1]], [s for k, p in enumerate(parts) if key[k] == x for s in p])
            for x in sorted(set(key))
        ]

    def ends(self, statement: str, dim: str) -> str:
        """The dims on which a statement's range depends: the same for all that share a loop."""
        domain = self.graph[statement].domain
        if dim not in domain or not varies(domain[dim], self.sizes):
            return ""
        return f"{domain[dim]} {self.late.get(statement, ())}"

    def movable(self, statement: Statement) -> bool:
        """May it run in a later loop? Totals and results of calls stay where they are made."""
        of_calls = any(isinstance(self.graph.arrays[a.name].type, Tuple) for a in statement.args)
        sums = (w.accumulates for a in statement.args for w in self.graph.writers[a.name])
        return not of_calls and not statement.accumulates and not any(sums)

    def direction(
        self, part: list[str], inner: list[Dependence], left: dict[str, set[str]], dim: str
    ) -> int | Literal["illegal"] | None:
        """The direction of a cycle along a dim: 0 none, +1, -1, None either way, "illegal"."""
        have = [dim in left[s] for s in part]
        if not any(have):
            return 0
        if not all(have) or any(self.waits(s, left[s], dim) for s in part):
            return "illegal"
        if not inner:
            return None
        lags = {e: x for e in inner if (x := self.lag(e, dim)) is not None}
        found = direction(part, self.steps(lags)) if lags.keys() >= {*inner} else None
        return "illegal" if found is None else found[0]

    def waits(self, statement: str, left: set[str], dim: str) -> bool:
        """Does its range along a dim depend on another that has no loop yet?"""
        return bool(self.graph[statement].domain[dim].mentions() & left)

    def signed(self, dependence: Dependence, dim: str, sign: int) -> Lag | None:
        x = self.lag(dependence, dim)
        return None if x is None else x if sign > 0 else -x

    def steps(self, lags: Mapping[Dependence, Lag]) -> list[tuple[str, str, Lag]]:
        """The demands of dependences on shifts; a total is taken in the step that adds it up."""
        out: list[tuple[str, str, Lag]] = []
        for e, x in lags.items():
            out.append((e.source, e.sink, x))
            if self.graph[e.source].accumulates:
                out.append((e.sink, e.source, Lag(0, 0)))
        return out

    def prefer(
        self,
        into: list[Dependence],
        of: dict[str, int],
        kinds: list[int | None],
        level: list[int],
        dim: str,
    ) -> int:
        """The direction of a statement that is free: the one that waits least for what it reads."""
        wait = {
            sign: max(
                (level[of[e.source]] + self.apart(e, kinds[of[e.source]], sign, dim) for e in into),
                default=0,
            )
            for sign in (1, -1)
        }
        return 1 if wait[1] <= wait[-1] else -1

    def apart(self, dependence: Dependence, source: int | None, sink: int | None, dim: str) -> int:
        """1 where the sink's loop must wait for the source's to end, else 0."""
        if not source:
            return 0
        if source != sink or self.ends(dependence.source, dim) != self.ends(dependence.sink, dim):
            return 1
        x = self.signed(dependence, dim, source)
        return 1 if x is None or x.low is None else 0

    def expand(
        self, _group: _Group, edges: list[Dependence], left: dict[str, set[str]], dim: str
    ) -> tuple[Item, ...]:
        """One group as a loop with shifts, or as plain items."""
        within = self.within(_group.members, edges)
        if not _group.step:
            return self.order(_group.members, within, left)
        ends = {e: x for e in within if (x := self.signed(e, dim, _group.step)) is not None}
        shift = retime(
            _group.members, self.steps(ends), {s: self.weight(s) for s in _group.members}
        )
        open_: list[Dependence] = []
        for e, x in ends.items():
            assert x.low is not None
            if x.low + shift[e.sink] - shift[e.source] <= 0:
                open_.append(e)
            else:
                time = x + (shift[e.sink] - shift[e.source])
                travels = time.exact == 1 and left[e.source] == {dim} and not e.ref.slices
                (self.next_step if travels else self.later).add((e.source, e.sink))
        for s in _group.members:
            self.late[s] = (*self.late.get(s, ()), shift[s])
        inside = {s: left[s] - {dim} for s in _group.members}
        body = self.order(_group.members, open_, inside)
        return (
            Loop(
                dim, _group.step, tuple(sorted(shift.items(), key=lambda p: self.place[p[0]])), body
            ),
        )

    def weight(self, statement: str) -> float:
        """Bytes that one point of the statement holds."""
        s = self.graph[statement]
        if isinstance(s.type, Tuple):  # more than its items, so that none of them is taken later
            return 2.0 * sum(x.nbytes(self.sizes) for x in s.type.items)
        return 0.0 if s.accumulates else float(s.type.nbytes(self.sizes))

    def no_order(self, stmts: Sequence[str], edges: list[Dependence], dims: list[str]) -> NoOrder:
        """The cycle that no loop can carry, without what a total reads of its running value."""
        read = [e for e in edges if not self.graph[e.source].accumulates]
        ties = [(self.graph[e.sink].equation, e.ref) for e in read]
        written = dict.fromkeys(self.graph.declared[d].parent or d for d in dims)
        tried = (
            f"no direction of {', '.join(written)} carries it"
            if dims
            else "at one and the same point"
        )
        return NoOrder([*dict.fromkeys(self.graph[s].equation for s in stmts)], ties, tried)


@dataclass(frozen=True)
class _Group:
    """Statements of one loop (step ±1) or of none (0)."""

    step: int
    members: list[str]


def _wished(
    stmts: Sequence[str], feeds: dict[str, set[str]], wishes: set[tuple[str, str]]
) -> dict[str, set[str]]:
    """`feeds` with every wish (ahead, behind) that closes no cycle with the others."""
    here = [(a, b) for a, b in wishes if a in feeds and b in feeds and a not in (b, *feeds[b])]
    if not here:
        return feeds
    more = {s: set(x) for s, x in feeds.items()}
    for ahead, behind in here:
        more[behind].add(ahead)
    part = {s: k for k, p in enumerate(components(stmts, more.__getitem__)) for s in p}
    return {s: {a for a in x if a in feeds[s] or part[a] != part[s]} for s, x in more.items()}
