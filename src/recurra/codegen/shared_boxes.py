"""Homes: points of an equation that are kept in the store of another, a box of it each."""

from __future__ import annotations

from recurra.codegen.array_machine import ArrayMachine, LoopTime, MachineArray, MachineStore
from recurra.codegen.tiled_stores import place, slot
from recurra.ir.expr import Env
from recurra.storage.store import Home, Store


def settle(
    machine: ArrayMachine,
    array: MachineStore,
    store: Store,
    home: Home,
    value: object,
    env: Env,
) -> MachineStore:
    """The store with the value of one point in its box."""
    starts, lead, axes = _box(store, home, env)
    turned: MachineArray = machine.xp.permute_dims(value, axes)
    behind = turned.shape[len(turned.shape) - (len(starts) - len(lead)) :]
    return machine.write_box(array, starts, machine.xp.reshape(turned, (*lead, *behind)))


def settled(
    machine: ArrayMachine, array: MachineStore, store: Store, home: Home, env: Env
) -> tuple[MachineArray, tuple[int, ...]]:
    """The value of one point as it lies there, and which axis of it each axis is."""
    starts, lead, axes = _box(store, home, env)
    point = store.type.sizes(env)
    whole = (*point[: home.axis], home.size, *point[home.axis :])
    shape = tuple(whole[k] for k in axes)
    behind = shape[len(shape) - (len(starts) - len(lead)) :]
    return machine.xp.reshape(machine.read(array, starts, (*lead, *behind)), shape), axes


def _box(
    store: Store, home: Home, env: Env
) -> tuple[tuple[LoopTime, ...], tuple[int, ...], tuple[int, ...]]:
    """The begin of the box of a point, its size along axes of points, and the order of its axes.

    A store in tiles has the points of a box behind, where its order says; any other one ahead.
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
