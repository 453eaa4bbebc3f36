"""Stores → offsets in one arena: two share bytes if no one reads one after the other is written.

    0..65,535     r  32,768 B, alive in steps 2..4
    ..            g  32,768 B at 32,768

Time is the schedule's order of statements, a loop's body as often as it is written: a store that
each step of an outer loop fills anew is alive from its first statement in the body to its last; one
that the next step still reads, for the whole loop; one that may be read where nobody has written,
for the whole program: it has to stay finite. Who packs is an argument: by default it is greedy;
`solve` may be any function of a `Problem`, as the solvers of `mapping` are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from recurra.cost.thresholds import ARENA_SOLVER_TRIES
from recurra.ir.graph import Slice
from recurra.ops.elementwise import Going
from recurra.schedule.dependences import dependences
from recurra.schedule.tree import Exec, Item
from recurra.storage.arena import Arena, Life
from recurra.storage.mapping_problem import Problem, ProblemError, Solution, packing
from recurra.storage.storage_plan import Path, StoragePlan
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
    """The smallest arena that is found; that of `solve`, unless greedy's is smaller.

    `by` is what `solve` is called in the report; it is asked for `tries` sizes of the arena. It
    raises `ProblemError` for one into which nothing fits. What it answers is checked; an answer
    that does not hold raises `ProblemError`. Only of some `stores`, if they are told.
    """
    found = tuple(x for x in lives(plan) if stores is None or x.store in stores)
    load = _load(found)
    best = _greedy(found)
    chosen = Arena(found, best, _top(found, best), load, "greedy")
    low, high, proven = load, chosen.nbytes, True
    for k in range(tries if solve else 0):
        if low >= high and k:
            break
        assert solve is not None
        limit = low if low == load else (low + high) // 2 // ALIGNMENT * ALIGNMENT
        try:
            offsets = _packed(found, limit, solve)
        except ProblemError:  # it is proven that they do not fit
            offsets = None
        else:
            proven = proven and offsets is not None
        if offsets is None:
            low = limit + ALIGNMENT
        else:
            chosen = Arena(found, offsets, _top(found, offsets), load, by)
            high = chosen.nbytes
    if wrong := conflicts(chosen):
        raise ProblemError(f"{chosen.by} gave an arena that does not hold", facts=wrong[0])
    return replace(chosen, least=high == load or (proven and low >= high))


def conflicts(arena: Arena) -> list[str]:
    """Find what is wrong with the offsets: pairs that are alive at once in one place."""
    wrong: list[str] = []
    placed = list(zip(arena.lives, arena.offsets, strict=True))
    for k, (x, a) in enumerate(placed):
        if a < 0 or a + x.nbytes > arena.nbytes:
            wrong.append(f"{x.store} at {a} leaves the arena of {arena.nbytes} B")
        for y, b in placed[:k]:
            at_once = x.first <= y.last and y.first <= x.last
            if at_once and a < b + y.nbytes and b < a + x.nbytes:
                wrong.append(f"{x.store} at {a} and {y.store} at {b} overlap")
    return wrong


def lives(plan: StoragePlan) -> tuple[Life, ...]:
    """The life of each store, in steps: the statements of the schedule in order."""
    spans, steps = _spans(plan.schedule.items)
    paths = plan.schedule.paths()
    writers = plan.statements.writers
    users = {name: [s.name for s in writers[name]] for name in plan.stores}
    for name in plan.homes:
        users[plan.store_of(name)] += [s.name for s in writers[name]]
    for r in dependences(plan.statements):
        if plan.accesses[r.sink, r.k].how == "store":
            users[plan.store_of(r.ref.name)].append(r.sink)
    found: list[Life] = []
    unwritten = read_unwritten(plan)
    for name, store in plan.stores.items():
        folded = {a.dim for a in store.axes if a.kind == "folded"}
        first, last = _span(spans, [paths[s] for s in users[name]], folded)
        always = store.given or name in unwritten
        first = 0 if always else first
        last = steps - 1 if store.output or always else last
        if nbytes := each(plan, store) * (store.apart.slots if store.apart else 1):
            found.append(Life(name, nbytes, first, last))
    return tuple(found)


def each(plan: StoragePlan, store: Store) -> int:
    """Bytes of one buffer of a store, and of what is left empty behind it."""
    buffers = store.apart.slots if store.apart else 1
    return _aligned(store.nbytes(plan.sizes) // max(1, buffers))


def read_unwritten(plan: StoragePlan) -> set[str]:
    """Stores that may be read where nothing was written: behind a range that grows, in the rest of
    a tile, past the end of rows. What is there is hidden afterwards, but has to be finite."""
    out = {name for name, s in plan.stores.items() if s.tiled is not None}
    for r in dependences(plan.statements):
        if plan.accesses[r.sink, r.k].how == "store" and any(
            isinstance(e, Slice) and (e.pad is not None or e.loose) for e in r.ref.index
        ):
            out.add(plan.store_of(r.ref.name))
    nodes = plan.graph.nodes.values()
    ended = {t for n in nodes if isinstance(n.op, Going) for t in n.op.times}
    ended |= {t + part for t in ended for part in ("z", "e")}  # its tiles, and points of them
    return out | {n for n in plan.stores if ended & set(plan.graph[n].domain.dims)}


Place = tuple[int, ...]


def _spans(items: Sequence[Item]) -> tuple[dict[Place, tuple[int, int]], int]:
    """First and last step of every item of the schedule, by its place; and how many there are."""
    spans: dict[Place, tuple[int, int]] = {}

    def walk(items: Sequence[Item], place: Place, step: int) -> int:
        for k, it in enumerate(items):
            after = step + 1 if isinstance(it, Exec) else walk(it.body, (*place, k), step)
            spans[*place, k] = (step, after - 1)
            step = after
        return step

    return spans, walk(items, (), 0)


def _span(
    spans: dict[Place, tuple[int, int]], paths: Sequence[Path], folded: set[str]
) -> tuple[int, int]:
    """The steps from the first to the last of these statements, with loops that it outlives."""
    depth = 0
    while all(len(p) > depth + 1 and p[: depth + 1] == paths[0][: depth + 1] for p in paths):
        loop = paths[0][depth][1]
        if loop is None or loop.dim not in folded:
            break
        depth += 1
    places = [tuple(k for k, _ in p[: depth + 1]) for p in paths]
    return min(spans[p][0] for p in places), max(spans[p][1] for p in places)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _load(found: Sequence[Life]) -> int:
    """Bytes at the fullest step: lives meet where one of them begins."""
    return max((sum(y.nbytes for y in _alive(found, x.first)) for x in found), default=0)


def _alive(found: Sequence[Life], step: int) -> Iterator[Life]:
    return (y for y in found if y.first <= step <= y.last)


def _greedy(found: Sequence[Life]) -> tuple[int, ...]:
    """The largest first, each at the lowest offset where it fits."""
    offsets = [0] * len(found)
    done: list[int] = []
    for i in sorted(range(len(found)), key=lambda i: (-found[i].nbytes, found[i].first)):
        x, at = found[i], 0
        met = [j for j in done if found[j].first <= x.last and x.first <= found[j].last]
        for j in sorted(met, key=lambda j: offsets[j]):
            if offsets[j] >= at + x.nbytes:
                break
            at = max(at, offsets[j] + found[j].nbytes)
        offsets[i] = at
        done.append(i)
    return tuple(offsets)


def _top(found: Sequence[Life], offsets: Sequence[int]) -> int:
    return max((at + x.nbytes for at, x in zip(offsets, found, strict=True)), default=0)


def _packed(found: Sequence[Life], limit: int, solve: Solve) -> tuple[int, ...] | None:
    """Offsets below the limit, or None: none were found."""
    problem = packing("arena", [(x.first, x.last, x.nbytes) for x in found], limit)
    placements = solve(problem).placements
    offsets = [0] * len(found)
    for b, p in zip(problem.buffers, placements, strict=True):
        if p is None:
            return None
        offsets[b.tensor_id] = p.offset
    return tuple(offsets)
