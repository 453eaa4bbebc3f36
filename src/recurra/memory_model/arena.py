"""Views of an arena: the stores in it as arrays without numbers in one metered buffer."""

from __future__ import annotations

from recurra.ir.types import NUMPY_NAME
from recurra.memory_model.amount import Amount, number
from recurra.memory_model.arrays import ArrayView, allocated
from recurra.memory_model.peak_meter import Label, Meter, MeteredBuffer
from recurra.storage.arena import Arena
from recurra.storage.storage_plan import StoragePlan

NAME = "the arena"


def within(meter: Meter, plan: StoragePlan, slack: int) -> dict[str, ArrayView | list[ArrayView]]:
    """The stores in the arena of a plan, which has `slack` more bytes for alignment.

    For other bounds it is as large as the stores on top of each other up to its end.
    """
    if plan.arena is None:
        return {}
    separate = {name: _buffers(plan, name) for name in plan.arena.places}
    nbytes = plan.arena.nbytes + slack
    block = MeteredBuffer(
        meter, Label(NAME, "store", nbytes, _amount(plan.arena, separate, nbytes))
    )
    out: dict[str, ArrayView | list[ArrayView]] = {}
    for name, arrays in separate.items():
        views = [ArrayView(meter, block, x.layout, x.shape) for x in arrays]
        out[name] = views if plan.stores[name].per_point else views[0]
    return out


def _buffers(plan: StoragePlan, name: str) -> list[ArrayView]:
    """The buffers of a store outside of the arena, without counting them."""
    store, meter = plan.stores[name], Meter()
    shape, dtype = store.shape(plan.sizes), NUMPY_NAME[store.type.dtype]
    return [
        allocated(meter, shape, dtype)
        for _ in range(store.per_point.slots if store.per_point else 1)
    ]


def _amount(arena: Arena, separate: dict[str, list[ArrayView]], nbytes: int) -> Amount:
    """The amount of an arena: gaps between the stores of its stack are the same for all bounds."""
    labels = [x.label for name in arena.stack for x in separate[name]]
    total, rest = Amount(), nbytes
    for x in labels:
        assert x is not None
        total, rest = total + x.amount, rest - x.nbytes
    return total + number(rest)
