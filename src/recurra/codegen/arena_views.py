"""The stores of a run as views of one block of memory, where the plan has an arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeGuard

from recurra.ir.arrays import LibraryArray
from recurra.ir.types import NUMPY_NAME
from recurra.storage.allocation import each
from recurra.storage.storage_plan import StoragePlan

View = tuple[int, tuple[int, ...], str]  # where it starts, its shape, NumPy's name of its type


class Placing(Protocol):
    """A backend that cuts arrays out of one block."""

    def arena(self, nbytes: int, views: Sequence[View]) -> list[LibraryArray]:
        """Arrays of zeros, inside of so many bytes."""
        ...


def can_place(backend: object) -> TypeGuard[Placing]:
    """Is it one?"""
    return hasattr(backend, "arena")


def views(plan: StoragePlan) -> dict[str, list[View]]:
    """Map every store in the arena to its buffer, or buffers if it is split."""
    if plan.arena is None:
        return {}
    out: dict[str, list[View]] = {}
    for name, at in plan.arena.places.items():
        store = plan.stores[name]
        shape, dtype = store.shape(plan.sizes), NUMPY_NAME[store.type.dtype]
        count = store.apart.slots if store.apart else 1
        out[name] = [(at + k * each(plan, store), shape, dtype) for k in range(count)]
    return out


def placed(plan: StoragePlan, backend: object) -> Mapping[str, LibraryArray | list[LibraryArray]]:
    """Every store in the arena, as a run begins with it: an array, or a list of those apart."""
    found = views(plan)
    if plan.arena is None or not found:
        return {}
    assert can_place(backend)
    arrays = iter(backend.arena(plan.arena.nbytes, [v for each in found.values() for v in each]))
    made = {name: [next(arrays) for _ in each] for name, each in found.items()}
    return {n: xs if plan.stores[n].apart else xs[0] for n, xs in made.items()}
