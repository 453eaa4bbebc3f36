"""Homes: points of an equation that are kept in the store of another, each as a box of it."""

from __future__ import annotations

from recurra.codegen.array_machine import ArrayMachine, LoopTime, MachineArray, MachineStore
from recurra.codegen.tiled_stores import place, slot
from recurra.ir.expr import Env
from recurra.storage.store import Home, Store


def write_home(
    machine: ArrayMachine, array: MachineStore, store: Store, home: Home, value: object, env: Env
) -> MachineStore:
    """Write one point to its box; return the store."""
    starts, lead, axes = _box(store, home, env)
    permuted: MachineArray = machine.xp.permute_dims(value, axes)
    behind = permuted.shape[len(permuted.shape) - (len(starts) - len(lead)) :]
    return machine.write_box(array, starts, machine.xp.reshape(permuted, (*lead, *behind)))


def read_home(
    machine: ArrayMachine, array: MachineStore, store: Store, home: Home, env: Env
) -> tuple[MachineArray, tuple[int, ...]]:
    """Read one point in the layout of the store; also return the order of its axes."""
    starts, lead, axes = _box(store, home, env)
    point = store.type.sizes(env)
    whole = (*point[: home.axis], home.size, *point[home.axis :])
    shape = tuple(whole[k] for k in axes)
    behind = shape[len(shape) - (len(starts) - len(lead)) :]
    return machine.xp.reshape(machine.read(array, starts, (*lead, *behind)), shape), axes


def _box(
    store: Store, home: Home, env: Env
) -> tuple[tuple[LoopTime, ...], tuple[int, ...], tuple[int, ...]]:
    """The start of the box of a point, its size along axes of points, and the order of its axes.

    In a tiled store the points of a box come after the axes of points, in the store's order; in
    others they are along these axes.
    """
    first = 0 if home.along is None else env[home.along] * home.size
    at, tiled = {**env, home.dim: first}, store.tiled
    order = tuple(range(store.type.rank + 1)) if tiled is None else store.order
    axes = tuple(home.axis if k == 0 else k - (k <= home.axis) for k in order)
    places = (slot(a, at[a.dim]) for a in store.kept)
    if tiled is None:
        lead = tuple(home.size if a.dim == home.dim else 1 for a in store.kept)
        return (*places, *(0,) * store.type.rank), lead, axes
    behind = (place(tiled, first) if k == 0 else 0 for k in order)
    return (*places, *behind), (1,) * len(store.kept), axes
