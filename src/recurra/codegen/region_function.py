"""A region as a plain function of arrays, on any machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from recurra.codegen.array_machine import ArrayMachine, MachineStore
from recurra.codegen.early_exit import early_exits
from recurra.codegen.loop_segments import LoopSegment
from recurra.codegen.region import Region, start_of
from recurra.codegen.schedule_interpreter import ScheduleInterpreter, Scope
from recurra.ir.expr import SEED, Env
from recurra.ir.types import NUMPY_NAME, Tuple, Type
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store

LaunchFunction = Callable[..., tuple[Any, ...]]
"""f(seed, *times, *held, *carried, *stores, *reads) -> (*gives, *stores)"""
ArraySpec = tuple[tuple[int, ...], str]
"""The shape and dtype of an array."""


def times(region: Region) -> int:
    """The number of integer arguments of a launch: loop times, and ends of rows."""
    return len(region.around) + (2 if region.chunk is not None else 0) + len(region.ends)


def time_arguments(plan: StoragePlan, region: Region) -> list[tuple[str, int | None]]:
    """The integer arguments of a launch: a name, and the most it can be (None: unknown) of each."""
    c = region.chunk
    span = [] if c is None else [f"{c.dim}_from", f"{c.dim}_end"]
    names = [*(x.dim for x in region.around), *span]
    points = {e.going: e.points for e in early_exits(plan.schedule, plan.sizes)}
    return [*((n, None) for n in names), *((f"{e}_ended", points[e]) for e in region.ends)]


def argument_types(plan: StoragePlan, region: Region) -> tuple[ArraySpec | list[ArraySpec], ...]:
    """The shape and dtype of each argument after the times: variables, then stores.

    The results of a host call are one variable: a list of shapes and dtypes.
    """

    def array(type_: Type) -> ArraySpec:
        return type_.sizes(plan.sizes), NUMPY_NAME[type_.dtype]

    types = [plan.statements.arrays[n].type for n in (*region.held, *region.carried)]
    variables = [list(map(array, t.items)) if isinstance(t, Tuple) else array(t) for t in types]
    stores = [plan.stores[s] for s in (*region.stores, *region.reads)]
    return (*variables, *((s.shape(plan.sizes), NUMPY_NAME[s.type.dtype]) for s in stores))


def region_function(
    plan: StoragePlan,
    region: Region,
    machine: ArrayMachine,
    walker: Callable[[StoragePlan, ArrayMachine], ScheduleInterpreter] = ScheduleInterpreter,
    here: Callable[[], Env] = dict,
) -> LaunchFunction:
    """Return f(seed, *times, *held, *carried, *stores, *reads) -> (*gives, *stores).

    A region that finds out where rows end returns that first. `here` is called in every launch: it
    returns the worker that runs it and the function that joins values of all workers.
    """
    if region.local:
        compiled = partial(region_function, plan, machine=machine, walker=walker, here=here)
        return with_local_stores(plan, region, compiled, machine)
    walk, ints, names = walker(plan, machine), times(region), (*region.held, *region.carried)
    stores = (*region.stores, *region.reads)

    def run(seed: object, *args: Any) -> tuple[Any, ...]:
        at, arrays = args[len(region.around) : ints], args[ints:]
        vals = dict(zip(names, arrays[: len(names)], strict=True))
        state = Scope(vals, dict(zip(stores, arrays[len(names) :], strict=True)))
        state.env = {SEED: seed, **here()}
        state.clocks = tuple(zip(region.around, args[: len(region.around)], strict=True))
        ends = dict(zip(region.ends, at[len(at) - len(region.ends) :], strict=True))
        if region.chunk is not None:
            lo, hi, *_ = at
            state.ends = dict(ends)
            walk.stretch(region.chunk, LoopSegment(lo, hi, region.active), state)
        else:
            state.ends = {e: x for e, x in ends.items() if e not in region.found}
            walk.begin(start_of(region.around), state, frozenset(region.statements))
            walk.items(region.items, state, region.active)
            if region.tail is not None:
                walk.tail(region.ends[0], region.tail, region.active, state)
        known = [state.ends.get(e, x) for e, x in ends.items() if region.polls]
        values, written = state.vals, state.stores
        return *known, *(values[v] for v in region.gives), *(written[s] for s in region.stores)

    run.__name__ = region.name
    return run


def with_local_stores(
    plan: StoragePlan,
    region: Region,
    compiled: Callable[[Region], LaunchFunction],
    machine: ArrayMachine,
) -> LaunchFunction:
    """Wrap a region compiled with all stores as arguments: its local stores are made here."""
    code = compiled(replace(region, stores=(*region.stores, *region.local), local=()))
    local = [plan.stores[s] for s in region.local]
    before_reads = 1 + times(region) + len(region.held) + len(region.carried) + len(region.stores)

    def run(*args: object) -> tuple[Any, ...]:
        mine = (zeros(plan, s, machine) for s in local)
        return code(*args[:before_reads], *mine, *args[before_reads:])[: -len(local)]

    run.__name__ = region.name
    return run


def zeros(plan: StoragePlan, store: Store, machine: ArrayMachine) -> MachineStore:
    """The initial array of a store: zeros, since masked values that nobody wrote must be finite."""
    return machine.xp.zeros(store.shape(plan.sizes), dtype=NUMPY_NAME[store.type.dtype])
