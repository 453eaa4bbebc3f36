"""The stores of a run as views of one block of memory, if the plan has an arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeGuard

from recurra.ir.array_protocols import LibraryArray
from recurra.ir.types import NUMPY_NAME
from recurra.storage.arena_offsets import buffer_bytes
from recurra.storage.storage_plan import StoragePlan

View = tuple[int, tuple[int, ...], str]  # offset, shape, name of the NumPy dtype


class ArenaBackend(Protocol):
    """A backend that can cut arrays out of one block."""

    def arena(self, nbytes: int, views: Sequence[View]) -> list[LibraryArray]:
        """Return arrays of zeros in one block of `nbytes` bytes."""
        ...


def can_place(backend: object) -> TypeGuard[ArenaBackend]:
    """Can the backend cut arrays out of one block?"""
    return hasattr(backend, "arena")


def views(plan: StoragePlan) -> dict[str, list[View]]:
    """The buffer of each store in the arena, or its buffers if there is one per point."""
    if plan.arena is None:
        return {}
    out: dict[str, list[View]] = {}
    for name, at in plan.arena.places.items():
        store = plan.stores[name]
        shape, dtype = store.shape(plan.sizes), NUMPY_NAME[store.type.dtype]
        count = store.per_point.slots if store.per_point else 1
        out[name] = [(at + k * buffer_bytes(plan, store), shape, dtype) for k in range(count)]
    return out


def arena_arrays(
    plan: StoragePlan, backend: object
) -> Mapping[str, LibraryArray | list[LibraryArray]]:
    """The initial array of each store in the arena; a list if it has one buffer per point."""
    found = views(plan)
    if plan.arena is None or not found:
        return {}
    assert can_place(backend)
    arrays = iter(backend.arena(plan.arena.nbytes, [v for each in found.values() for v in each]))
    buffers = {name: [next(arrays) for _ in each] for name, each in found.items()}
    return {n: xs if plan.stores[n].per_point else xs[0] for n, xs in buffers.items()}
