"""Slots of stores, and tiled stores: write a point into its tile, read a tile in memory order."""

from __future__ import annotations

from collections.abc import Mapping

from recurra.codegen.array_machine import ArrayMachine, LoopTime, MachineArray, MachineStore
from recurra.ir.expr import Env, evaluate
from recurra.ir.graph import Index, Slice
from recurra.storage.store import Store, StoredAxis

PointIndex = Mapping[str, Index]  # by dim of the stored array


def slot(axis: StoredAxis, at: LoopTime) -> LoopTime:
    """The slot of a point along an axis; of a tiled axis, the number of its tile."""
    match axis.kind:
        case "full":
            return at - axis.lo
        case "tiled":
            return (at - axis.lo) // axis.tile
        case "strided":
            return (at - axis.lo) // axis.step + 1
        case "mirrored" | "per_point":
            return 0
        case _:
            return at % axis.slots


def written_slot(machine: ArrayMachine, axis: StoredAxis, at: LoopTime) -> LoopTime:
    """The slot that a point is written to; points between those of a stride go to the first."""
    if axis.kind != "strided":
        return slot(axis, at)
    is_kept = (axis.step - (at - axis.lo) % axis.step) // axis.step
    return machine.minimum(slot(axis, at), is_kept * axis.slots)


def place(axis: StoredAxis, at: LoopTime) -> LoopTime:
    """The position of a point in its tile."""
    return at % axis.tile if axis.kind == "mirrored" else (at - axis.lo) % axis.tile


def put(
    machine: ArrayMachine,
    array: MachineStore,
    store: Store,
    starts: tuple[LoopTime, ...],
    value: object,
    env: Env,
) -> MachineStore:
    """Write a point into its tile, at the tile's `starts`; return the store."""
    axis = store.tiled
    assert axis is not None
    value = machine.xp.permute_dims(value, tuple(k - 1 for k in store.order if k))

    def at(where: LoopTime) -> tuple[LoopTime | None, ...]:
        return (*starts, *(where if k == 0 else None for k in store.order))

    first = place(axis, env[axis.dim])
    if not axis.room:
        return machine.write(array, at(first), value)
    # Points that have no second place are written to the last one, which no range reads.
    second = machine.minimum(first + axis.tile, axis.tile + axis.room - 1)
    return machine.write(array, at(first), value, at(second))


def only_tile(store: Store, index: PointIndex) -> bool:
    """Is exactly one tile read, and is no other index a range?"""
    axis = store.tiled
    ranges = [d for d, e in index.items() if isinstance(e, Slice)]
    return axis is not None and ranges == [axis.dim]


def stored_tile(
    machine: ArrayMachine, array: MachineStore, store: Store, index: PointIndex, env: Env
) -> tuple[MachineArray, list[int]]:
    """Read a tile, or one point of it, in memory order; also return the sizes of the kept axes.

    Kept axes of size 1 are left out of the array.
    """
    kept, xp = store.kept, machine.xp
    starts: list[LoopTime] = []
    lead: list[int] = []
    first: LoopTime = 0
    length = 1
    for a in kept:
        e = index[a.dim]
        lo = evaluate(e.lo if isinstance(e, Slice) else e, env, xp)
        starts.append(slot(a, lo))
        if a is not store.tiled:
            lead.append(evaluate(e.size, env) if isinstance(e, Slice) else 1)
            continue
        if a.kind == "mirrored" or not isinstance(e, Slice):
            first = place(a, lo)
        if isinstance(e, Slice):
            length = a.tile if a.kind == "tiled" else evaluate(e.size, env)
    at = next(k for k, a in enumerate(kept) if a is store.tiled)
    behind = [
        length if k == 0 else n for k, n in zip(store.order, store.point_shape(env), strict=True)
    ]
    sizes = (*lead[:at], 1, *lead[at:], *behind)
    box = machine.read(array, (*starts, *(first if k == 0 else 0 for k in store.order)), sizes)
    return xp.reshape(box, (*(n for n in lead if n != 1), *behind)), lead


def read_tile(
    machine: ArrayMachine, array: MachineStore, store: Store, index: PointIndex, env: Env
) -> MachineArray:
    """Read a tile with all kept axes, its points at the place of the tiled one: [.., *shape]."""
    box, lead = stored_tile(machine, array, store, index, env)
    at = next(k for k, a in enumerate(store.kept) if a is store.tiled)
    box = machine.xp.reshape(box, (*lead, *box.shape[len(box.shape) - len(store.order) :]))
    order = [len(lead) + store.order.index(k) for k in range(len(store.order))]
    return machine.xp.permute_dims(box, (*range(at), order[0], *range(at, len(lead)), *order[1:]))
