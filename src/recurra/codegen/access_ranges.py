"""The places of stores that a launch reads and writes, as a function of its loop times.

    region act(ints: i t; stores: o a)        at t = 7:  o reads 7, writes 8    a writes 1 of 2

A store is cut along the dims that the host counts, outermost first, into places of equal size: two
launches that touch no place in common touch no byte in common. Unknown accesses are of all places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from recurra.codegen.early_exit import early_exits
from recurra.codegen.region import Region
from recurra.ir.expr import evaluate, symbols
from recurra.ir.graph import Index, Slice
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import StoredAxis

Spans = tuple[tuple[int, int], ...]  # places lo..hi-1


@dataclass(frozen=True)
class StoreAccess:
    """An access of a store by a statement: an index per cut axis (None: any), and its shifts."""

    store: str
    writes: bool
    index: tuple[Index | None, ...]
    shifts: tuple[int, ...]


def cut(plan: StoragePlan, regions: Iterable[Region]) -> dict[str, tuple[StoredAxis, ...]]:
    """The axes along which each store is cut; no axes if data end loops, which fill stores up."""
    if early_exits(plan.schedule, plan.sizes):
        return {name: () for name in plan.stores}
    dims = list(dict.fromkeys(loop.dim for r in regions for loop in r.around))
    return {
        name: tuple(a for d in dims for a in store.kept if a.dim == d and _plain(a))
        for name, store in plan.stores.items()
    }


def _plain(axis: StoredAxis) -> bool:
    return axis.kind in ("full", "circular") and axis.tile == 1 and not axis.room and axis.slots > 0


def places(axes: Sequence[StoredAxis]) -> int:
    """The number of places of a store."""
    return prod(a.slots for a in axes)


def accessed_places(
    plan: StoragePlan, region: Region, axes: Mapping[str, tuple[StoredAxis, ...]]
) -> Callable[[tuple[int, ...]], dict[str, tuple[Spans, Spans]]]:
    """Return f(times of the loops around): the places of each store that are read, and written.

    Written places are read, too: a launch may leave a part of one as it was. Stores that are inputs
    are left out, since nothing writes them.
    """
    found = {x for s in region.statements for x in _statement(plan, region, s, axes)}
    mine = [s for s in (*region.stores, *region.reads) if not plan.stores[s].given]
    known = {(x.store, x.writes) for x in found}
    for s in mine:  # stores that no statement mentions
        whole = (None,) * len(axes[s])
        if region.tail is not None or not known & {(s, False), (s, True)}:
            found.add(StoreAccess(s, s in region.stores, whole, (0,) * len(region.around)))

    by_shifts = {x.shifts: [y for y in found if y.shifts == x.shifts] for x in found}

    @lru_cache(maxsize=4096)
    def at(times: tuple[int, ...]) -> dict[str, tuple[Spans, Spans]]:
        read: dict[str, set[tuple[int, int]]] = {s: set() for s in mine}
        written: dict[str, set[tuple[int, int]]] = {s: set() for s in mine}
        for shifts, touches in by_shifts.items():
            env = dict(plan.sizes)
            for loop, time, shift in zip(region.around, times, shifts, strict=True):
                env[loop.dim] = loop.step * (time - shift)
            for x in touches:
                index = zip(axes[x.store], x.index, strict=True)
                spans = _flat(_rows([_slots(a, e, env) for a, e in index]), axes[x.store])
                read[x.store].update(spans)
                if x.writes:
                    written[x.store].update(spans)
        return {s: (tuple(sorted(read[s])), tuple(sorted(written[s]))) for s in mine}

    return at


def _statement(
    plan: StoragePlan, region: Region, text: str, axes: Mapping[str, tuple[StoredAxis, ...]]
) -> Iterable[StoreAccess]:
    """The accesses of stores by one statement."""
    node, shifts = plan.statements[text], tuple(loop.shift[text] for loop in region.around)
    known = {*plan.sizes, *(loop.dim for loop in region.around)}

    def touch(name: str, index: Mapping[str, Index], writes: bool) -> StoreAccess:
        store = plan.store_of(name)
        own = store == name  # an equation kept in another's store has another index there
        found = [index.get(a.dim) if own else None for a in axes[store]]
        kept = tuple(e if e is not None and _symbols(e) <= known else None for e in found)
        return StoreAccess(store, writes, kept, shifts)

    arrays = plan.statements.arrays
    if plan.written(text) in axes and not plan.stores[plan.written(text)].given:
        places = zip(arrays[node.array].domain.dims, node.places, strict=True)
        yield touch(node.array, dict(places), True)
    for k, a in enumerate(node.args):
        if plan.accesses.get((text, k)) != "store" or plan.stores[plan.store_of(a.name)].given:
            continue
        yield touch(a.name, dict(zip(arrays[a.name].domain.dims, a.index, strict=True)), False)


def _symbols(index: Index) -> frozenset[str]:
    return symbols(index.lo) | symbols(index.size) if isinstance(index, Slice) else symbols(index)


def _slots(axis: StoredAxis, index: Index | None, env: Mapping[str, int]) -> Spans:
    """The slots of an axis that an index selects; all slots if it leads outside."""
    every = ((0, axis.slots),)
    if index is None:
        return every
    if isinstance(index, Slice):
        lo = evaluate(index.lo, env)
        hi = lo + (evaluate(index.size, env) - 1) * index.step + 1
    else:
        lo = evaluate(index, env)
        hi = lo + 1
    if axis.kind == "full":
        lo, hi = lo - axis.lo, hi - axis.lo
        return ((lo, hi),) if 0 <= lo < hi <= axis.slots else every
    if not 0 < hi - lo < axis.slots:
        return every
    first, last = lo % axis.slots, lo % axis.slots + hi - lo
    return ((first, last),) if last <= axis.slots else ((first, axis.slots), (0, last - axis.slots))


def _rows(slots: list[Spans]) -> list[Spans]:
    """Drop the axes after the first range, so that the places are contiguous."""
    for k, spans in enumerate(slots):
        if any(hi - lo > 1 for lo, hi in spans):
            return slots[: k + 1]
    return slots


def _flat(slots: list[Spans], axes: Sequence[StoredAxis]) -> Spans:
    """The places as intervals in memory order, the first cut axis outermost."""
    out: Spans = ((0, 1),)
    for spans, a in zip(slots, axes, strict=False):
        out = tuple((at * a.slots + lo, at * a.slots + hi) for at, _ in out for lo, hi in spans)
    rest = places(axes[len(slots) :])
    return tuple((lo * rest, hi * rest) for lo, hi in out)
