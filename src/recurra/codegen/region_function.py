"""function: a region as a plain function of arrays, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from recurra.codegen.array_machine import Machine
from recurra.codegen.loop_segments import Segment, members
from recurra.codegen.region import Region, start_of
from recurra.codegen.schedule_interpreter import State, Walk
from recurra.ir.types import NUMPY_NAME, Tuple, Type
from recurra.storage.storage_plan import Plan
from recurra.storage.store import Store


def times(r: Region) -> int:
    """How many loop times a launch is given, and ends of such."""
    return len(r.around) + (2 if r.chunk is not None else 0) + len(r.ends)


def arguments(plan: Plan, r: Region) -> tuple[Any, ...]:
    """Shape and dtype of what a launch is given after the times: variables, stores.

    The results of a host call are one variable: a list of shapes and dtypes.
    """

    def array(t: Type) -> tuple[tuple[int, ...], str]:
        return t.sizes(plan.sizes), NUMPY_NAME[t.dtype]

    types = [plan.statements.arrays[n].type for n in (*r.held, *r.carried)]
    variables = [list(map(array, t.items)) if isinstance(t, Tuple) else array(t) for t in types]
    stores = [plan.stores[s] for s in (*r.stores, *r.reads)]
    return (*variables, *((s.shape(plan.sizes), NUMPY_NAME[s.type.dtype]) for s in stores))


def function(
    plan: Plan,
    r: Region,
    machine: Machine,
    walker: Callable[[Plan, Machine], Walk] = Walk,
    here: Callable[[], Mapping[str, Any]] = dict[str, Any],
) -> Callable[..., tuple[Any, ...]]:
    """f(seed, *times, *held, *carried, *stores, *reads) -> (*gives, *stores)

    A region that asks where rows end gives that ahead of all. `here` is asked, with every launch,
    which worker runs it and how workers join.
    """
    if r.local:

        def given_all(r: Region) -> Callable[..., tuple[Any, ...]]:
            return function(plan, r, machine, walker, here)

        return with_local_stores(plan, r, given_all, lambda s: zeros(plan, s, machine))
    walk, ints, names = walker(plan, machine), times(r), (*r.held, *r.carried)
    stores = (*r.stores, *r.reads)

    def run(seed: Any, *given: Any) -> tuple[Any, ...]:
        at, arrays = given[len(r.around) : ints], given[ints:]
        vals = dict(zip(names, arrays[: len(names)], strict=True))
        state = State(vals, dict(zip(stores, arrays[len(names) :], strict=True)))
        state.env = {"seed": seed, **here()}
        state.clocks = tuple(zip(r.around, given[: len(r.around)], strict=True))
        if r.chunk is not None:
            lo, hi, *ends = at
            state.ends = dict(zip(r.ends, ends, strict=True))
            walk.stretch(r.chunk, Segment(lo, hi, r.active), state)
        else:
            state.ends = dict(zip(r.ends, at, strict=True))
            walk.begin(start_of(r.around), state, r.active & frozenset(members(r.items)))
            walk.items(r.items, state, r.active)
            if r.tail is not None:
                walk.tail(r.ends[0], r.tail, r.active, state)
        known = [state.ends[e] for e in r.ends if r.asks]
        return (*known, *(state.vals[v] for v in r.gives), *(state.stores[s] for s in r.stores))

    run.__name__ = r.name
    return run


def with_local_stores(
    plan: Plan,
    r: Region,
    compiled: Callable[[Region], Callable[..., tuple[Any, ...]]],
    make: Callable[[Store], Any],
) -> Callable[..., tuple[Any, ...]]:
    """A region that makes the stores that it has for itself, of one that is given all of them."""
    code = compiled(replace(r, stores=(*r.stores, *r.local), local=()))
    local = [plan.stores[s] for s in r.local]
    before_reads = 1 + times(r) + len(r.held) + len(r.carried) + len(r.stores)

    def run(*given: Any) -> tuple[Any, ...]:
        mine = map(make, local)
        return code(*given[:before_reads], *mine, *given[before_reads:])[: -len(local)]

    run.__name__ = r.name
    return run


def zeros(plan: Plan, store: Store, machine: Machine) -> Any:
    """A store before anything has run; what a mask hides before it is written must be finite."""
    return machine.xp.zeros(store.shape(plan.sizes), dtype=NUMPY_NAME[store.type.dtype])
