"""Schedule a graph loop by loop, from the outside in (Allen and Kennedy, 1987).

At each level the first dim, in the user's order, that is legal for all statements becomes a loop.
Cycles fix its direction; reads of the future split the loop if unbounded, and shift statements
if bounded (retiming.py). Dependences that the loop carries are dropped, and its body is ordered
in the same way.
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
from recurra.transforms.reductions_to_accumulators import reads_whole_ranges


class NoOrder(Exception):
    """Equations that no loop can order: their reads of each other, and what was tried."""

    def __init__(self, equations: Sequence[str], ties: Sequence[tuple[str, Ref]], tried: str):
        super().__init__(tried)
        self.equations, self.ties, self.tried = equations, ties, tried


def find_schedule(
    graph: Graph,
    sizes: Mapping[str, int],
    axes: frozenset[str] = frozenset(),
    cuts: Cuts = MappingProxyType({}),
    guarded: Mapping[str, Expr] = MappingProxyType({}),
) -> Schedule:
    """Return an order for every point of every equation; raises ScheduleError if there is none.

    Equations without an order are first split into several statements, so that a branch, or
    a point that is read by itself, waits only for what it reads; then they are guarded, so that
    they run only at the points that are demanded.

    Args:
        axes: dims that are about to become axes: no loop is made for them.
        cuts: equations that are several statements.
        guarded: the conditions under which equations run.
    """
    first: NoOrder | None = None
    for _ in range(MAX_CUT_ROUNDS + 1):
        try:
            return _for_any_bounds(graph, sizes, axes, cuts, guarded)
        except NoOrder as error:
            if first is None or not {*first.equations} & {*error.equations}:
                first = error  # the earlier equations have an order now
            finer = _refine(graph, cuts, error)
            demanded = _demand(graph, sizes, axes, error.equations) if finer == cuts else guarded
            if finer == cuts and demanded.items() <= guarded.items():
                break
            cuts, guarded = finer, {**guarded, **demanded}
    assert first is not None
    raise no_order(graph, first.equations, first.ties, first.tried)


def _refine(graph: Graph, cuts: Cuts, error: NoOrder) -> Cuts:
    """Cut the equations without an order into branches first, then at points read by themselves."""
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


def _demand(
    graph: Graph, sizes: Mapping[str, int], axes: frozenset[str], names: Iterable[str]
) -> Mapping[str, Expr]:
    """The conditions under which equations are demanded, if loops can evaluate them."""
    exact = demanded_exactly(graph, sizes)
    loops = {n: c for n, c in exact.items() if not symbols(c) & axes and graph[n].op.pure}
    return {n: loops[n] for n in names if n in loops}


def _for_any_bounds(
    graph: Graph,
    sizes: Mapping[str, int],
    axes: frozenset[str],
    cuts: Cuts,
    guarded: Mapping[str, Expr],
) -> Schedule:
    """The schedule that is legal for all bounds or, if there is none, for these."""
    try:
        return _schedule(graph, False, sizes, axes, cuts, guarded)
    except NoOrder:
        with suppress(NoOrder):
            return _schedule(graph, True, sizes, axes, cuts, guarded)
        raise


def _schedule(
    graph: Graph,
    bound: bool,
    sizes: Mapping[str, int],
    axes: frozenset[str],
    cuts: Cuts,
    guarded: Mapping[str, Expr],
) -> Schedule:
    """The schedule of a graph, by its dependences for any bounds or, if `bound`, for `sizes`."""
    while True:
        known = lower_values(bind_bounds(graph, sizes) if bound else graph, sizes, cuts, guarded)
        dims = {n: set(s.domain.dims) - axes for n, s in known.statements.items()}
        items = _Levels(known, sizes).order(list(dims), real_dependences(known), dims)
        own = lower_values(graph, sizes, cuts, guarded) if bound else known
        result = Schedule(graph, own, number_loops(items))
        folds = misplaced_folds(result, sizes)
        if not folds:
            return result
        graph = graph.update(map(fold_to_reduction, folds))


def fold_to_reduction(node: Node) -> Node:
    """Return a fold as a reduction, which reads all of its operand when it runs."""
    assert isinstance(node.op, Fold)
    return replace(node, op=REDUCTION[node.op.monoid_of](axes=tuple(range(node.op.rank))))


def misplaced_folds(schedule: Schedule, sizes: Mapping[str, int]) -> list[Node]:
    """The folds whose running value would have to serve several points: they read another point
    than their own, or their additions run in other loops than they do."""
    paths, graph = schedule.paths(), schedule.graph
    out: list[Node] = []
    for n in graph.nodes.values():
        if isinstance(n.op, Fold):
            (a,) = n.args
            loops = [x for x in paths[n.name] if x[1] is not None]
            adds = schedule.statements.running(n.name)
            together = adds is not None and loops == list(paths[adds][: len(loops)])
            if not together or not reads_whole_ranges(n, a, graph[a.name], sizes):
                out.append(n)
    return out


@dataclass
class _Levels:
    graph: StatementGraph
    sizes: Mapping[str, int]
    lags: dict[tuple[Dependence, str], Lag | None] = field(default_factory=dict)
    next_step: set[tuple[str, str]] = field(default_factory=set)  # source -> sink, one step later
    later: set[tuple[str, str]] = field(default_factory=set)  # source -> sink, through a store
    shifts: dict[str, tuple[int, ...]] = field(default_factory=dict)  # in the loops around

    def __post_init__(self) -> None:
        self.position = {s: k for k, s in enumerate(self.graph.statements)}

    def lag(self, dependence: Dependence, dim: str) -> Lag | None:
        """The lag of a dependence along a dim; None if one end lacks the dim."""
        key = (dependence, dim)
        if key not in self.lags:
            source, sink = self.graph[dependence.source].domain, self.graph[dependence.sink].domain
            self.lags[key] = (
                lag(dim, dependence.index[source.dims.index(dim)], sink, dependence.where)
                if dim in source and dim in sink
                else None
            )
        return self.lags[key]

    def order(
        self, stmts: list[str], edges: list[Dependence], left: dict[str, set[str]]
    ) -> tuple[Item, ...]:
        """Items that run `stmts` under `edges`; `left` are the dims still to loop over."""
        todo = [d for d in self.graph.declared if any(d in left[s] for s in stmts)]
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
        """Order statements at one point, as the emission contract wants it.

        A value that the next step reads is read before it is overwritten: it is carried as
        a variable. A value that later steps read is written first: a store has one version.
        """
        feeds: dict[str, set[str]] = {s: set() for s in stmts}
        for e in edges:
            feeds[e.sink].add(e.source)
        for part in components(stmts, lambda s: feeds[s]):
            if len(part) > 1 or part[0] in feeds[part[0]]:
                raise self.no_order(part, self.within(part, edges), [])
        for preferences in ({(b, a) for a, b in self.next_step}, self.later):
            feeds = _with_preferences(stmts, feeds, preferences)
        order = topological(sorted(stmts, key=self.position.__getitem__), feeds.__getitem__)
        grouped = self.graph.guarded or any(self.is_call(s) for s in stmts)
        return self.group_calls(order, feeds) if grouped else order

    def group_calls(self, stmts: list[str], feeds: Mapping[str, set[str]]) -> list[str]:
        """Reorder so that independent host calls are adjacent, the statements between calls are one
        launch, and statements under the same condition are adjacent."""
        out: list[str] = []
        left, calls = dict.fromkeys(stmts), True
        while left:
            ready = [s for s in left if not feeds[s] & left.keys()]
            same = [s for s in ready if self.is_call(s) == calls] or ready
            last = self.graph[out[-1]].conditions if out else (TRUE, ())
            s = next((s for s in same if self.graph[s].conditions == last), same[0])
            out.append(s)
            calls = self.is_call(s)
            del left[s]
        return out

    def is_call(self, statement: str) -> bool:
        return isinstance(self.graph[statement].op, Call)

    def groups(
        self, stmts: list[str], edges: list[Dependence], left: dict[str, set[str]], dim: str
    ) -> list[_Group] | None:
        """Loops over `dim` and the statements between them; None if no loop is legal here."""
        parts = self.parts(stmts, edges)
        part_of = {s: k for k, p in enumerate(parts) for s in p}
        inner: list[list[Dependence]] = [[] for _ in parts]
        into: list[list[Dependence]] = [[] for _ in parts]
        for e in edges:
            sink = part_of[e.sink]
            (inner if sink == part_of[e.source] else into)[sink].append(e)
        kinds: list[int | None] = []  # 0: no loop, +1, -1; None: either direction
        for k, p in enumerate(parts):
            kind = self.direction(p, inner[k], left, dim)
            if kind == "illegal":
                return None
            kinds.append(kind)
        level: list[int] = []
        ranges = {s: self.range_key(s, dim) for s in stmts}

        def must_wait(dependence: Dependence, source: int | None, sink: int | None) -> int:
            """1 if the sink's loop begins when the source's has ended; 0 if both are one loop."""
            same = source == sink and ranges[dependence.source] == ranges[dependence.sink]
            return 1 if source and not (same and self.has_least_lag(dependence, dim, source)) else 0

        def earliest(part: int, sign: int | None) -> int:
            """The first level at which a part can run in this direction."""
            sources = ((e, part_of[e.source]) for e in into[part])
            return max((level[k] + must_wait(e, kinds[k], sign) for e, k in sources), default=0)

        free = {
            k
            for k, p in enumerate(parts)
            if len(p) == 1 and not kinds[k] and self.movable(self.graph[p[0]])
        }
        for k in range(len(parts)):
            if kinds[k] is None:  # the direction that waits least
                kinds[k] = 1 if earliest(k, 1) <= earliest(k, -1) else -1
            level.append(earliest(k, kinds[k]))
        placement = LoopPlacement(
            edges=[e for es in into for e in es],
            level={s: level[k] for s, k in part_of.items()},
            kind={s: kinds[k] for s, k in part_of.items()},
            free=[parts[k][0] for k in reversed(range(len(parts))) if k in free],
            weight=self.weight,
            must_wait=must_wait,
        )
        placement.sink()
        for k in free:
            level[k], kinds[k] = placement.level[parts[k][0]], placement.kind[parts[k][0]]
        order = (0, 1, -1)  # statements without a loop precede the loops of their level
        key = [
            (level[k], order.index(kinds[k] or 0), self.range_key(p[0], dim))
            for k, p in enumerate(parts)
        ]
        return [
            _Group(order[x[1]], [s for k, p in enumerate(parts) if key[k] == x for s in p])
            for x in sorted(set(key))
        ]

    def range_key(self, statement: str, dim: str) -> str:
        """The range of a statement if other dims change it: the same for all that share a loop."""
        domain = self.graph[statement].domain
        if dim not in domain or not varies(domain[dim], self.sizes):
            return ""
        return f"{domain[dim]} {self.shifts.get(statement, ())}"

    def movable(self, statement: Statement) -> bool:
        """Tell whether a statement may run in a later loop: readers of totals and of results of
        calls may not."""
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
        if not all(have) or any(self.graph[s].domain[dim].mentions() & left[s] for s in part):
            return "illegal"  # its range depends on a dim that has no loop yet
        if not inner:
            return None
        lags = {e: x for e in inner if (x := self.lag(e, dim)) is not None}
        legal = direction(part, self.steps(lags)) if lags.keys() >= {*inner} else None
        return "illegal" if legal is None else legal[0]

    def signed(self, dependence: Dependence, dim: str, sign: int) -> Lag | None:
        x = self.lag(dependence, dim)
        return None if x is None else x if sign > 0 else -x

    def steps(self, lags: Mapping[Dependence, Lag]) -> list[tuple[str, str, Lag]]:
        """The constraints of dependences on shifts; a total is read in the step that adds it up."""
        out: list[tuple[str, str, Lag]] = []
        for e, x in lags.items():
            out.append((e.source, e.sink, x))
            if self.graph[e.source].accumulates:
                out.append((e.sink, e.source, Lag(0, 0)))
        return out

    def has_least_lag(self, dependence: Dependence, dim: str, sign: int) -> bool:
        """Tell whether a shift can carry the dependence within one loop in this direction."""
        x = self.signed(dependence, dim, sign)
        return x is not None and x.low is not None

    def expand(
        self, group: _Group, edges: list[Dependence], left: dict[str, set[str]], dim: str
    ) -> tuple[Item, ...]:
        """One group as a loop with shifts, or as plain items."""
        members = group.members
        within = self.within(members, edges)
        if not group.step:
            return self.order(members, within, left)
        lags = {e: x for e in within if (x := self.signed(e, dim, group.step)) is not None}
        shift = retime(members, self.steps(lags), {s: self.weight(s) for s in members})
        open_: list[Dependence] = []
        for e, x in lags.items():
            assert x.low is not None
            if x.low + shift[e.sink] - shift[e.source] <= 0:
                open_.append(e)
            else:
                later = x + (shift[e.sink] - shift[e.source])
                carried = later.exact == 1 and left[e.source] == {dim} and not e.ref.slices
                (self.next_step if carried else self.later).add((e.source, e.sink))
        for s in members:
            self.shifts[s] = (*self.shifts.get(s, ()), shift[s])
        body = self.order(members, open_, {s: left[s] - {dim} for s in members})
        shifts = tuple(sorted(shift.items(), key=lambda p: self.position[p[0]]))
        return (Loop(dim, group.step, shifts, body),)

    def weight(self, statement: str) -> float:
        """Bytes that one point of the statement holds."""
        s = self.graph[statement]
        if isinstance(s.type, Tuple):  # more than its items, so that no pick of one moves later
            return 2.0 * sum(x.nbytes(self.sizes) for x in s.type.items)
        return 0.0 if s.accumulates else float(s.type.nbytes(self.sizes))

    def no_order(self, stmts: Sequence[str], edges: list[Dependence], dims: list[str]) -> NoOrder:
        """The cycle that no loop can carry, without the reads of running values by their totals."""
        reads = [e for e in edges if not self.graph[e.source].accumulates]
        ties = [(self.graph[e.sink].equation, e.ref) for e in reads]
        names = ", ".join(dict.fromkeys(self.graph.declared[d].parent or d for d in dims))
        tried = f"no direction of {names} carries it" if dims else "at one and the same point"
        return NoOrder([*dict.fromkeys(self.graph[s].equation for s in stmts)], ties, tried)


@dataclass(frozen=True)
class _Group:
    """Statements of one loop (step ±1), or outside of loops (0)."""

    step: int
    members: list[str]


def _with_preferences(
    stmts: Sequence[str], feeds: dict[str, set[str]], preferences: set[tuple[str, str]]
) -> dict[str, set[str]]:
    """`feeds` with every preference (first, second) that closes no cycle with the others."""
    new = [(a, b) for a, b in preferences if a in feeds and b in feeds and a not in (b, *feeds[b])]
    if not new:
        return feeds
    more = {s: set(x) for s, x in feeds.items()}
    for first, second in new:
        more[second].add(first)
    part = {s: k for k, p in enumerate(components(stmts, more.__getitem__)) for s in p}
    return {s: {a for a in x if a in feeds[s] or part[a] != part[s]} for s, x in more.items()}
