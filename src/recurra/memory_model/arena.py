"""The stores of an arena as arrays without numbers in one buffer."""

from __future__ import annotations

from recurra.ir.types import NUMPY_NAME
from recurra.memory_model.amount import Amount, number
from recurra.memory_model.arrays import ArrayView, allocated
from recurra.memory_model.peak_meter import Label, Meter, MeteredBuffer
from recurra.storage.arena import Arena
from recurra.storage.storage_plan import StoragePlan

NAME = "the arena"


def within(meter: Meter, plan: StoragePlan, slack: int) -> dict[str, ArrayView | list[ArrayView]]:
    """Every store in the arena of a plan, as `program.placed` gives it; `slack` bytes lie around.

    For other bounds it is as large as the stores that lie on each other up to its end.
    """
    if plan.arena is None:
        return {}
    alone = {name: _apart(plan, name) for name in plan.arena.places}
    nbytes = plan.arena.nbytes + slack
    block = MeteredBuffer(meter, Label(NAME, "store", nbytes, _amount(plan.arena, alone, nbytes)))
    out: dict[str, ArrayView | list[ArrayView]] = {}
    for name, arrays in alone.items():
        views = [ArrayView(meter, block, x.layout, x.shape) for x in arrays]
        out[name] = views if plan.stores[name].apart else views[0]
    return out


def _apart(plan: StoragePlan, name: str) -> list[ArrayView]:
    """The buffers of a store, as nobody counts them."""
    store, meter = plan.stores[name], Meter()
    shape, dtype = store.shape(plan.sizes), NUMPY_NAME[store.type.dtype]
    return [allocated(meter, shape, dtype) for _ in range(store.apart.slots if store.apart else 1)]


def _amount(arena: Arena, alone: dict[str, list[ArrayView]], nbytes: int) -> Amount:
    """The amount of an arena: gaps between the stores of the stack are the same for all bounds."""
    labels = [x.label for name in arena.stack for x in alone[name]]
    total, rest = Amount(), nbytes
    for x in labels:
        assert x is not None
        total, rest = total + x.amount, rest - x.nbytes
    return total + number(rest)
