"""Give stores offsets in one arena: two may share bytes if their live ranges do not overlap.

    0..65,535     r  32,768 B, alive in steps 2..4
    ..            g  32,768 B at 32,768

Time is the schedule's order of statements, with each loop's body once. A store that each step of an
outer loop fills anew is alive from its first statement in the body to its last; a store that the
next step still reads, for the whole loop; a store that may be read where nothing was written, for
the whole program, because its contents must stay finite. Packing is greedy by default; `solve` may
be any function of a `Problem`, such as the solvers of `mapping`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from recurra.cost.thresholds import ARENA_SOLVER_TRIES
from recurra.ir.graph import Slice
from recurra.ops.elementwise import Going
from recurra.schedule.dependences import dependences
from recurra.schedule.tree import Exec, Item, Path
from recurra.storage.arena import Arena, LiveRange
from recurra.storage.mapping_problem import Problem, ProblemError, Solution, packing
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store

ALIGNMENT = 64  # bytes: a cache line, and the widest vector

Solve = Callable[[Problem], Solution]


def allocate(
    plan: StoragePlan,
    solve: Solve | None = None,
    by: str = "solve",
    tries: int = ARENA_SOLVER_TRIES,
    stores: Collection[str] | None = None,
) -> Arena:
    """Return the smallest arena found: the one of `solve`, unless the greedy one is smaller.

    Args:
        solve: called for up to `tries` sizes of the arena. It raises `ProblemError` for a size into
            which not everything fits. Its answer is checked: `ProblemError` if it is invalid.
        by: the name of `solve` in the report.
        stores: the stores to place; None for all of them.
    """
    ranges = tuple(x for x in live_ranges(plan) if stores is None or x.store in stores)
    load = _load(ranges)
    greedy = _greedy(ranges)
    best = Arena(ranges, greedy, _top(ranges, greedy), load, "greedy")
    low, high, proven = load, best.nbytes, True
    for k in range(tries if solve else 0):
        if low >= high and k:
            break
        assert solve is not None
        limit = low if low == load else (low + high) // 2 // ALIGNMENT * ALIGNMENT
        try:
            offsets = _packed(ranges, limit, solve)
        except ProblemError:  # it is proven that they do not fit
            offsets = None
        else:
            proven = proven and offsets is not None
        if offsets is None:
            low = limit + ALIGNMENT
        else:
            best = Arena(ranges, offsets, _top(ranges, offsets), load, by)
            high = best.nbytes
    if errors := conflicts(best):
        raise ProblemError(f"{best.by} gave an arena that does not hold", facts=errors[0])
    return replace(best, least=high == load or (proven and low >= high))


def conflicts(arena: Arena) -> list[str]:
    """List the errors in the offsets: pairs of stores that are alive at once in the same bytes."""
    errors: list[str] = []
    placed = list(zip(arena.live_ranges, arena.offsets, strict=True))
    for k, (x, a) in enumerate(placed):
        if a < 0 or a + x.nbytes > arena.nbytes:
            errors.append(f"{x.store} at {a} leaves the arena of {arena.nbytes} B")
        for y, b in placed[:k]:
            if x.overlaps(y) and a < b + y.nbytes and b < a + x.nbytes:
                errors.append(f"{x.store} at {a} and {y.store} at {b} overlap")
    return errors


def live_ranges(plan: StoragePlan) -> tuple[LiveRange, ...]:
    """The live range of each store, in steps: the statements of the schedule in order."""
    spans, steps = _spans(plan.schedule.items)
    paths = plan.schedule.paths()
    users: dict[str, list[str]] = {name: [] for name in plan.stores}
    for name in (*plan.stores, *plan.homes):
        users[plan.store_of(name)] += [s.name for s in plan.statements.writers[name]]
    for r in dependences(plan.statements):
        if plan.access(r.sink, r.k) == "store":
            users[plan.store_of(r.ref.name)].append(r.sink)
    ranges: list[LiveRange] = []
    unwritten = read_unwritten(plan)
    for name, store in plan.stores.items():
        scalar = {a.dim for a in store.axes if a.kind == "scalar"}
        first, last = _span(spans, [paths[s] for s in users[name]], scalar)
        always = store.given or name in unwritten
        first = 0 if always else first
        last = steps - 1 if store.output or always else last
        if nbytes := buffer_bytes(plan, store) * (store.per_point.slots if store.per_point else 1):
            ranges.append(LiveRange(name, nbytes, first, last))
    return tuple(ranges)


def buffer_bytes(plan: StoragePlan, store: Store) -> int:
    """Bytes of one buffer of a store, rounded up to the alignment."""
    buffers = store.per_point.slots if store.per_point else 1
    return -(-(store.nbytes(plan.sizes) // max(1, buffers)) // ALIGNMENT) * ALIGNMENT


def read_unwritten(plan: StoragePlan) -> set[str]:
    """The stores that may be read where nothing was written: after a growing range, in the rest of
    a tile, past the end of rows. Such values are masked afterwards, but must be finite."""
    out = {name for name, s in plan.stores.items() if s.tiled is not None}
    for r in dependences(plan.statements):
        if plan.access(r.sink, r.k) == "store" and any(
            isinstance(e, Slice) and (e.pad is not None or e.loose) for e in r.ref.index
        ):
            out.add(plan.store_of(r.ref.name))
    nodes = plan.graph.nodes.values()
    ended = {t for n in nodes if isinstance(n.op, Going) for t in n.op.times}
    ended |= {t + part for t in ended for part in ("z", "e")}  # its tiles, and points of them
    return out | {n for n in plan.stores if ended & set(plan.graph[n].domain.dims)}


Place = tuple[int, ...]


def _spans(items: Sequence[Item]) -> tuple[dict[Place, tuple[int, int]], int]:
    """The first and last step of every item of the schedule, by its place; and the step count."""
    spans: dict[Place, tuple[int, int]] = {}

    def walk(items: Sequence[Item], place: Place, step: int) -> int:
        for k, it in enumerate(items):
            after = step + 1 if isinstance(it, Exec) else walk(it.body, (*place, k), step)
            spans[*place, k] = (step, after - 1)
            step = after
        return step

    return spans, walk(items, (), 0)


def _span(
    spans: dict[Place, tuple[int, int]], paths: Sequence[Path], scalar: set[str]
) -> tuple[int, int]:
    """The first and last step of a store's users, extended to the loops that it outlives."""
    depth = 0
    while all(len(p) > depth + 1 and p[: depth + 1] == paths[0][: depth + 1] for p in paths):
        loop = paths[0][depth][1]
        if loop is None or loop.dim not in scalar:
            break
        depth += 1
    places = [tuple(k for k, _ in p[: depth + 1]) for p in paths]
    return min(spans[p][0] for p in places), max(spans[p][1] for p in places)


def _load(ranges: Sequence[LiveRange]) -> int:
    """Bytes at the fullest step, which is the first step of some live range."""
    alive = ((y.nbytes for y in ranges if y.first <= x.first <= y.last) for x in ranges)
    return max(map(sum, alive), default=0)


def _greedy(ranges: Sequence[LiveRange]) -> tuple[int, ...]:
    """Place the largest first, each at the lowest offset where it fits."""
    offsets: dict[int, int] = {}
    for i in sorted(range(len(ranges)), key=lambda i: (-ranges[i].nbytes, ranges[i].first)):
        x, at = ranges[i], 0
        neighbors = [(offsets[j], ranges[j].nbytes) for j in offsets if ranges[j].overlaps(x)]
        for offset, nbytes in sorted(neighbors):
            if offset >= at + x.nbytes:
                break
            at = max(at, offset + nbytes)
        offsets[i] = at
    return tuple(offsets[i] for i in range(len(ranges)))


def _top(ranges: Sequence[LiveRange], offsets: Sequence[int]) -> int:
    return max((at + x.nbytes for at, x in zip(offsets, ranges, strict=True)), default=0)


def _packed(ranges: Sequence[LiveRange], limit: int, solve: Solve) -> tuple[int, ...] | None:
    """Offsets below the limit; None if the solver found none."""
    problem = packing("arena", [(x.first, x.last, x.nbytes) for x in ranges], limit)
    placements = solve(problem).placements
    offsets = [0] * len(ranges)
    for b, p in zip(problem.buffers, placements, strict=True):
        if p is None:
            return None
        offsets[b.tensor_id] = p.offset
    return tuple(offsets)
