"""Points and ranges of a store, read and written on a machine, and initial values."""

from __future__ import annotations

from collections.abc import Mapping

from recurra.codegen.array_machine import ArrayMachine, LoopTime, MachineArray, MachineStore
from recurra.codegen.tiled_stores import PointIndex, put, read_tile, slot, written_slot
from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import Env, evaluate
from recurra.ir.graph import Slice
from recurra.ir.types import NUMPY_NAME, Tuple
from recurra.ops.reduction import Fold, identity
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store, StoredAxis


def write(
    machine: ArrayMachine, array: MachineStore, store: Store, value: object, env: Env
) -> MachineStore:
    """Write a value at a point; return the store."""
    starts = tuple(written_slot(machine, a, env[a.dim]) for a in store.kept)
    if store.tiled is not None:
        return put(machine, array, store, starts, value, env)
    return machine.write(array, starts, value)


def read(
    machine: ArrayMachine,
    array: MachineStore,
    store: Store,
    index: PointIndex,
    env: Env,
    sizes: Mapping[str, int],
) -> MachineArray:
    """Read an index of a store: slices are leading axes, in the order of dims."""
    xp = machine.xp
    if store.given and not store.kept:
        return machine.read_all(array)
    if store.tiled is not None:
        return _arranged(machine, read_tile(machine, array, store, index, env), store, index, env)
    starts: list[LoopTime] = []
    lengths: list[int] = []
    circular: list[tuple[int, Slice, StoredAxis]] = []
    for k, a in enumerate(store.kept):
        e = index[a.dim]
        if not isinstance(e, Slice):
            starts.append(slot(a, evaluate(e, env, xp)))
            lengths.append(1)
        elif (a.kind, e.step) in (("full", 1), ("strided", a.step)):
            starts.append(slot(a, evaluate(e.lo, env, xp)))
            lengths.append(evaluate(e.size, env))
        else:
            starts.append(0)
            lengths.append(a.slots)
            circular.append((k, e, a))
    shape = store.type.sizes(sizes)
    if 0 in array.shape and 0 not in shape:  # no point of it exists: a branch never taken
        lengths = [
            evaluate(e.size, env) if isinstance(e := index[a.dim], Slice) else 1 for a in store.kept
        ]
        box = xp.zeros((*lengths, *shape), dtype=array.dtype)
        return _arranged(machine, box, store, index, env)
    box = machine.read(array, (*starts, *(0,) * len(shape)), (*lengths, *shape))
    for k, e, a in circular:
        at = evaluate(e.lo, env, xp) + xp.arange(evaluate(e.size, env), dtype="int32") * e.step
        box = machine.gather(box, k, slot(a, at))
    return _arranged(machine, box, store, index, env)


def _arranged(
    machine: ArrayMachine, box: MachineArray, store: Store, index: PointIndex, env: Env
) -> MachineArray:
    """Drop the axes of points, order those of slices as the index does, and mask padding."""
    xp = machine.xp
    ranges = {d: e for d, e in index.items() if isinstance(e, Slice)}
    keep = [k for k, a in enumerate(store.kept) if a.dim in ranges]
    box = xp.reshape(box, (*(box.shape[k] for k in keep), *box.shape[len(store.kept) :]))
    sliced, wanted = [store.kept[k].dim for k in keep], list(ranges)
    for d, e in ranges.items():
        if d not in sliced:  # a scalar dim read as a range of one, or of none
            box = xp.expand_dims(box, axis=0)
            box = box if evaluate(e.size, env) else box[:0]
            sliced.insert(0, d)
    if sliced != wanted:
        rest = tuple(range(len(wanted), len(box.shape)))
        box = xp.permute_dims(box, (*(sliced.index(d) for d in wanted), *rest))
    for k, e in enumerate(ranges.values()):
        box = masked(machine, box, k, e, env)
    return box


def masked(
    machine: ArrayMachine, box: MachineArray, index: int, slice_: Slice, env: Env
) -> MachineArray:
    """Replace a range past its end by zeros, if it has room for more than there is."""
    if slice_.pad is None or slice_.loose:
        return box
    xp, n = machine.xp, box.shape[index]
    count = evaluate(slice_.count, env, xp)
    if isinstance(count, int) and count >= n:
        return box
    within = xp.arange(n) < count
    valid = xp.reshape(within, tuple(n if j == index else 1 for j in range(len(box.shape))))
    return xp.where(valid, box, xp.zeros_like(box))


def full(plan: StoragePlan, name: str, value: object, xp: ArrayNamespace) -> object:
    """A value of an equation's type that is one number everywhere."""
    type_ = plan.statements.arrays[name].type
    assert not isinstance(type_, Tuple)
    return xp.full(type_.sizes(plan.sizes), value, dtype=NUMPY_NAME[type_.dtype])


def blank(plan: StoragePlan, name: str, xp: ArrayNamespace) -> object:
    """Zeros, or the neutral element of a running sum."""
    type_, value = plan.statements.arrays[name].type, 0
    assert not isinstance(type_, Tuple)
    for w in plan.statements.writers[name]:
        if isinstance(w.op, Fold):
            value = identity(w.op.monoid_of, type_.dtype)
    return full(plan, name, value, xp)
