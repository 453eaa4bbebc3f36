"""A region as a plain function of arrays, on any machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from recurra.codegen.array_machine import ArrayMachine, MachineStore
from recurra.codegen.loop_segments import LoopSegment, members
from recurra.codegen.region import Region, start_of
from recurra.codegen.schedule_interpreter import Scope, Walk
from recurra.ir.expr import SEED, Env
from recurra.ir.types import NUMPY_NAME, Tuple, Type
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store

LaunchFunction = Callable[..., tuple[Any, ...]]
"""f(seed, *times, *held, *carried, *stores, *reads) -> (*gives, *stores)"""
ArraySpec = tuple[tuple[int, ...], str]
"""Shape and dtype of an array"""


def times(region: Region) -> int:
    """Count the loop times that a launch is given, and their ends."""
    return len(region.around) + (2 if region.chunk is not None else 0) + len(region.ends)


def arguments(plan: StoragePlan, region: Region) -> tuple[ArraySpec | list[ArraySpec], ...]:
    """Shape and dtype of what a launch is given after the times: variables, stores.

    The results of a host call are one variable: a list of shapes and dtypes.
    """

    def array(type_: Type) -> ArraySpec:
        return type_.sizes(plan.sizes), NUMPY_NAME[type_.dtype]

    types = [plan.statements.arrays[n].type for n in (*region.held, *region.carried)]
    variables = [list(map(array, t.items)) if isinstance(t, Tuple) else array(t) for t in types]
    stores = [plan.stores[s] for s in (*region.stores, *region.reads)]
    return (*variables, *((s.shape(plan.sizes), NUMPY_NAME[s.type.dtype]) for s in stores))


def function(
    plan: StoragePlan,
    region: Region,
    machine: ArrayMachine,
    walker: Callable[[StoragePlan, ArrayMachine], Walk] = Walk,
    here: Callable[[], Env] = dict,
) -> LaunchFunction:
    """f(seed, *times, *held, *carried, *stores, *reads) -> (*gives, *stores)

    A region that asks where rows end gives that ahead of all. `here` is asked, with every launch,
    which worker runs it and how workers join.
    """
    if region.local:

        def given_all(region: Region) -> LaunchFunction:
            return function(plan, region, machine, walker, here)

        return with_local_stores(plan, region, given_all, lambda s: zeros(plan, s, machine))
    walk, ints, names = walker(plan, machine), times(region), (*region.held, *region.carried)
    stores = (*region.stores, *region.reads)

    def run(seed: object, *given: Any) -> tuple[Any, ...]:
        at, arrays = given[len(region.around) : ints], given[ints:]
        vals = dict(zip(names, arrays[: len(names)], strict=True))
        state = Scope(vals, dict(zip(stores, arrays[len(names) :], strict=True)))
        state.env = {SEED: seed, **here()}
        state.clocks = tuple(zip(region.around, given[: len(region.around)], strict=True))
        ends = dict(zip(region.ends, at[len(at) - len(region.ends) :], strict=True))
        if region.chunk is not None:
            lo, hi, *_ = at
            state.ends = dict(ends)
            walk.stretch(region.chunk, LoopSegment(lo, hi, region.active), state)
        else:
            state.ends = {e: x for e, x in ends.items() if e not in region.found}
            walk.begin(
                start_of(region.around), state, region.active & frozenset(members(region.items))
            )
            walk.items(region.items, state, region.active)
            if region.tail is not None:
                walk.tail(region.ends[0], region.tail, region.active, state)
        known = [state.ends.get(e, x) for e, x in ends.items() if region.asks]
        return (
            *known,
            *(state.vals[v] for v in region.gives),
            *(state.stores[s] for s in region.stores),
        )

    run.__name__ = region.name
    return run


def with_local_stores(
    plan: StoragePlan,
    region: Region,
    compiled: Callable[[Region], LaunchFunction],
    make: Callable[[Store], object],
) -> LaunchFunction:
    """A region that makes the stores that it has for itself, of one that is given all of them."""
    code = compiled(replace(region, stores=(*region.stores, *region.local), local=()))
    local = [plan.stores[s] for s in region.local]
    before_reads = 1 + times(region) + len(region.held) + len(region.carried) + len(region.stores)

    def run(*given: object) -> tuple[Any, ...]:
        mine = map(make, local)
        return code(*given[:before_reads], *mine, *given[before_reads:])[: -len(local)]

    run.__name__ = region.name
    return run


def zeros(plan: StoragePlan, store: Store, machine: ArrayMachine) -> MachineStore:
    """A store before anything has run; what a mask hides before it is written must be finite."""
    return machine.xp.zeros(store.shape(plan.sizes), dtype=NUMPY_NAME[store.type.dtype])
