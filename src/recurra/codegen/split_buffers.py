"""Stores with one buffer for each point along a dim that the host counts.

    for l in range(0, 32):
        x, k_store[l] = region_3_t_l(seed, t, l, x, k_store[l], w_store[l])

A launch takes the buffer that it reads and writes: nothing is sliced out of a larger array first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from recurra.codegen.loop_segments import LoopSegment, calls_host, trips
from recurra.codegen.offloaded_samples import samplers
from recurra.codegen.region import Region, outliving_variables, stores_of
from recurra.cost.model import launch_ns
from recurra.cost.prices import Prices
from recurra.ir.expr import Expr, Sym, lin, substitute, symbols
from recurra.ir.graph import Slice
from recurra.schedule.dependences import dependences
from recurra.schedule.legality import lag_in_loop
from recurra.schedule.tree import Loop, members
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store

Places = Mapping[str, Mapping[str, Expr | int]]  # of a region or call: store -> its buffer


def divided(
    plan: StoragePlan,
    regions: Iterable[Region],
    calls: Mapping[str, tuple[Loop, ...]],
    stores: Mapping[str, Store],
    dims: Collection[str],
    offloaded: Mapping[str, str] = MappingProxyType({}),
    room: int = 0,
) -> tuple[dict[str, Store], Places]:
    """Split the stores that can be along one of `dims`; also return each region's buffers.

    A store can be split if every launch, and every one of `calls` (with the loops around it),
    touches one point. Stores to be `offloaded` are split along their own dim; `room` of their
    points are in memory at once, and calls that take samples of them get all points.
    """
    found = list(regions)
    out, where = dict(stores), dict[str, dict[str, Expr | int]]()
    for name, store in stores.items():
        along = {*dims, *([offloaded[name]] if name in offloaded else [])}
        axis = next((a for a in store.kept if a.dim in along and a.kind == "full"), None)
        if axis is None or store.output:
            continue
        mine = {
            r.name: place(plan, r, name, axis.dim) for r in found if name in (*r.stores, *r.reads)
        }
        takes = samplers(plan, store) if name in offloaded else set[str]()
        readers = {n.name for n, _ in plan.graph.readers[name]} & calls.keys() - takes
        mine |= {c: _one(plan, (c,), calls[c], name, axis.dim) for c in readers}
        if None in mine.values():
            continue
        lone = tuple(replace(a, kind="per_point") if a is axis else a for a in store.axes)
        out[name] = replace(
            store, axes=lone, room=min(room, axis.slots) if name in offloaded else 0
        )
        for r, at in mine.items():
            if at is not None:
                where.setdefault(r, {})[name] = lin([(at, 1), (-axis.lo, 1)])
    return out, where


def by_cost(plan: StoragePlan, prices: Prices) -> tuple[frozenset[str], list[str]]:
    """The dims of inner loops that the host should count, and the reasons.

    One program slices a point's part out of a larger array before a product reads it (XLA does on a
    CPU: a copy of each layer's weights, every token). A launch for each point does not.
    """
    found: dict[str, str] = {}
    dims: set[str] = set()
    for loop in (x for x in plan.schedule.items if isinstance(x, Loop)):
        for x in (x for x in loop.body if isinstance(x, Loop) and x.step > 0):
            stores = [plan.stores[n] for n in stores_of(plan, members(x.body))]
            inputs = [s for s in stores if s.given and any(a.dim == x.dim for a in s.kept)]
            bytes_ = sum(s.type.nbytes(plan.sizes) for s in inputs)
            arrays = len(stores) + len(outliving_variables(plan, x))
            cut, launch = bytes_ * prices.traffic, launch_ns(arrays)
            if not inputs or trips(plan.statements, x, plan.sizes) < 2:
                continue
            host = cut > launch
            dims |= {x.dim} if host else set()
            where = "the host counts it" if host else "counted inside of a launch"
            why = f"to cut {bytes_ / 1e6:.2g} MB out costs {cut / 1e3:.3g} µs a point"
            found[x.dim] = f"{x.dim}: {where} ({why}, a launch {launch / 1e3:.3g} µs)"
    return frozenset(dims), list(found.values())


def turns(plan: StoragePlan, loop: Loop, seg: LoopSegment[int], counted: Collection[str]) -> bool:
    """Can loops over counted dims be interchanged with a segment, which carries nothing?

    Each of their points is then one launch for all the times of the segment.
    """
    mine = [x for x in loop.body if not seg.active.isdisjoint(members((x,)))]
    inner = {s: x for x in mine for s in members((x,)) if s in seg.active}
    inward = [x for x in mine if isinstance(x, Loop) and x.dim in counted]
    steps = {loop.step, *(x.step for x in inward)}
    carried = {*dict(plan.initial_values.get(loop.id, ())), *outliving_variables(plan, loop)}
    if not inward or steps != {1} or any(plan.statements[s].accumulates for s in seg.active):
        return False
    if not carried.isdisjoint(seg.active) or any(calls_host(plan.statements, x) for x in mine):
        return False
    for r in dependences(plan.statements):
        if r.sink not in seg.active or r.source not in seg.active:
            continue
        x = inner[r.sink]
        if inner[r.source] is not x or lag_in_loop(plan.statements, r, loop).exact != 0:
            return False
        if isinstance(x, Loop) and lag_in_loop(plan.statements, r, x).exact != 0:
            return False
    return True


def place(plan: StoragePlan, region: Region, name: str, dim: str) -> Expr | int | None:
    """The one point along `dim` that a launch touches, by the host loop's time; None if several."""
    if region.tail is not None:
        return None
    return _one(plan, region.statements, region.around, name, dim)


def _one(
    plan: StoragePlan, statements: Iterable[str], around: Iterable[Loop], name: str, dim: str
) -> Expr | int | None:
    """The one point that all of some statements touch; None if they touch several."""
    loop = next((x for x in around if x.dim == dim), None)
    found = {x for s in statements for x in _points(plan, s, name, dim, loop)}
    return found.pop() if len(found) == 1 else None


def _points(
    plan: StoragePlan, text: str, name: str, dim: str, loop: Loop | None
) -> set[Expr | int | None]:
    """The points along `dim` of a store that a statement reads or writes; None: unknown points."""
    node, arrays = plan.statements[text], plan.statements.arrays
    read = [
        a.index[arrays[a.name].domain.dims.index(dim)]
        for k, a in enumerate(node.args)
        if plan.store_of(a.name) == name and plan.access(text, k) == "store"
    ]
    if plan.written(text) == name:
        at = dict(zip(arrays[node.array].domain.dims, node.places, strict=True))
        read.append(at.get(dim, Sym(dim)))
    out: set[Expr | int | None] = set()
    for e in read:
        if isinstance(e, Slice) or symbols(e) - {dim} or (symbols(e) and loop is None):
            out.add(None)
        elif loop is None:
            out.add(e)
        else:
            out.add(substitute(e, {dim: loop.point(text, Sym(dim))}))
    return out
