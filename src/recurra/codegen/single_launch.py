"""A program without host calls as one function, from the caller's arrays to results.

f(seed, {"x": x}) -> (y, z)        stores are made inside; nothing is done outside of it

An output that one statement computes at once is returned as that value, without a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recurra.codegen.array_machine import ArrayMachine
from recurra.codegen.host_program import ChunkLoop, Program, RegionLaunch
from recurra.codegen.input_layout import as_stored, written_order
from recurra.codegen.launch_size import items_ns
from recurra.codegen.region import Region, make_region, needed, stores_read
from recurra.codegen.region_function import zeros
from recurra.cost.prices import Prices
from recurra.cost.thresholds import MAX_SINGLE_LAUNCH_NS
from recurra.ir.array_protocols import ArrayNamespace, LibraryArray
from recurra.ir.expr import TRUE
from recurra.ir.output_axes import turned
from recurra.ir.types import NUMPY_NAME
from recurra.ops.source import Input
from recurra.schedule.tree import is_constant
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store

Arrays = Mapping[str, LibraryArray]
Finish = Callable[[Arrays, ArrayNamespace], tuple[LibraryArray, ...]]
"""(stores of outputs, array namespace) -> results"""
WholeProgram = Callable[[Any, Arrays], tuple[LibraryArray, ...]]
"""(seed, inputs in the caller's layout) -> results"""


def as_single_launch(plan: StoragePlan, program: Program, prices: Prices) -> Program | None:
    """Lower a plan to one launch; None if `program` has work for the host between launches.

    None also if it takes long, as nothing interrupts a launch. An output whose store holds one
    chunk in a program of several launches has all of its points here.
    """
    items = plan.schedule.items
    on_host = any(not isinstance(x, (RegionLaunch, ChunkLoop)) for x in program.items)
    if on_host or program.plan.arena is not None:
        return None
    if items_ns(plan, items, prices) > MAX_SINGLE_LAUNCH_NS:
        return None
    r = make_region(plan, "program", items, needed(plan), (), set())
    local = tuple(s for s in r.stores if not plan.stores[s].output)
    outputs = tuple(s for s in r.stores if s not in local)
    read = stores_read(plan, r.statements)
    values = tuple(s for s in outputs if s not in read and is_single_value(plan, s))
    outputs = tuple(s for s in outputs if s not in values)
    # variables read before they are written belong to branches that are not taken
    r = replace(r, held=(), carried=(), gives=values, stores=outputs, local=local)
    return Program(plan, (RegionLaunch(r),), values=values)


def is_single_value(plan: StoragePlan, name: str) -> bool:
    """Is a store a single value, which one statement computes outside of all loops?"""
    store, (writer, *more) = plan.stores[name], plan.statements.writers[name]
    return not (
        more
        or store.kept
        or store.tiled is not None
        or writer.where != TRUE
        or plan.loops_around[writer.name]
        or is_constant(writer)
        or any(home.store == name for home in plan.homes.values())
    )


def whole_program(
    plan: StoragePlan,
    region: Region,
    launch: Callable[..., tuple[LibraryArray, ...]],
    machine: ArrayMachine,
    finish: Finish,
) -> WholeProgram:
    """Return the function of a whole program; `launch` runs the region that is all of it."""
    names = (*region.stores, *region.reads)
    made_here = (*region.gives, *region.stores)
    begin = {
        n: initial(plan, s, machine)
        for n, s in plan.stores.items()
        if n in names or (s.output and n not in region.gives)
    }

    def run(seed: object, inputs: Arrays) -> tuple[LibraryArray, ...]:
        stores = {n: make(inputs) for n, make in begin.items()}
        results = launch(seed, *(stores[n] for n in names))
        stores |= zip(made_here, results, strict=True)
        return finish({n: stores[n] for n in plan.graph.outputs}, machine.xp)

    return run


def initial(
    plan: StoragePlan, store: Store, machine: ArrayMachine
) -> Callable[[Arrays], LibraryArray]:
    """Return a function that makes the initial array of a store: zeros, or the stored input."""
    shape, xp = store.shape(plan.sizes), machine.xp
    if not store.given:
        return lambda _: xp.zeros(shape, dtype=NUMPY_NAME[store.type.dtype])
    node = plan.graph[store.name]
    op = node.op
    assert isinstance(op, Input)

    whole = (*(r.size(plan.sizes) for r in node.domain), *store.type.sizes(plan.sizes))
    like = np.broadcast_to(np.zeros(()), whole)
    if not op.of and whole == shape and as_stored(node.domain, store, like, np) is like:
        return lambda inputs: inputs[node.name]

    def converted(inputs: Arrays) -> LibraryArray:
        array = as_stored(node.domain, store, op.given(node, plan.sizes, inputs), xp)
        if tuple(array.shape) == shape:
            return array
        # there is room for padded reads
        return machine.write_box(zeros(plan, store, machine), (0,) * len(shape), array)

    return converted


@dataclass(frozen=True)
class OutputOf:
    """Converts the store of an output to [*dims, *shape], without the room for padded reads."""

    lengths: tuple[int, ...]
    order: tuple[int, ...]

    def __call__(self, array: LibraryArray, xp: ArrayNamespace) -> LibraryArray:
        if tuple(array.shape[: len(self.lengths)]) != self.lengths:
            array = array[tuple(slice(0, n) for n in self.lengths)]
        return turned(array, self.order, xp)


def output_of(plan: StoragePlan, name: str) -> OutputOf:
    """Return the conversion of an output's store to [*dims, *shape]."""
    store, domain = plan.stores[name], plan.graph[name].domain
    lengths = tuple(domain[a.dim].size(plan.sizes) for a in store.kept)
    return OutputOf(lengths, written_order(domain, store, len(store.shape(plan.sizes))))
