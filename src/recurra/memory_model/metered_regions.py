"""Run regions on arrays without numbers: their allocations under NumPy, or under a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np

from recurra.codegen.array_machine import Starts, Until
from recurra.codegen.loop_segments import sample_steps
from recurra.codegen.region import Region, stores_of
from recurra.codegen.region_function import region_function, times
from recurra.codegen.schedule_interpreter import ScheduleInterpreter, Scope
from recurra.ir.expr import Env
from recurra.ir.statement import Statement
from recurra.ir.types import NUMPY_NAME, Tuple
from recurra.memory_model.array_namespace import AllocatingNamespace, Operand
from recurra.memory_model.arrays import ArrayView, allocated
from recurra.memory_model.peak_meter import Meter
from recurra.ops.collective import SHARD
from recurra.ops.control import Foreign
from recurra.schedule.tree import Item, members
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store

ArrayTree = ArrayView | tuple["ArrayTree", ...]
"""An array, or the arrays of a tuple"""
Compiled = Callable[..., tuple[ArrayTree, ...]]
Carry = TypeVar("Carry")
Named = TypeVar("Named")


@dataclass(frozen=True)
class ShapeMachine:
    """A machine that runs `steps(lo, hi)` of every loop; rows end as late as possible."""

    meter: Meter
    steps: Callable[[int, int], Sequence[int]] = sample_steps

    @property
    def xp(self) -> Any:
        return AllocatingNamespace(self.meter)

    def apply(self, node: Statement, env: Env, *args: object) -> ArrayTree:
        point = ", ".join(
            f"{r.dim}={env[r.dim]}" for r in node.domain if isinstance(env[r.dim], int)
        )
        self.meter.at = node.name + (f" of {point}" if point else "")
        if isinstance(op := node.op, Foreign):
            value: ArrayTree = allocated(self.meter, op.infer().sizes(env), NUMPY_NAME[op.dtype])
        else:
            value = node.op.run(self.xp, env, *args)
        return named(value, node.name)

    def loop(
        self, dim: str, lo: int, hi: int, body: Callable[[int, Carry], Carry], carry: Carry
    ) -> Carry:
        for time in self.steps(lo, hi):
            carry = body(time, carry)
        return carry

    def while_loop(
        self, dim: str, lo: int, hi: int, end: int, late: int, every: int, body: Until, carry: Carry
    ) -> tuple[int, Carry]:
        for time in self.steps(lo, min(hi, end + late)):
            _, _, carry = body(time, carry)
        return end, carry

    def cond(self, condition: object, body: Callable[[Carry], Carry], carry: Carry) -> Carry:
        return body(carry)

    def minimum(self, left: int, right: int) -> int:
        return min(left, right)

    def read(self, store: ArrayView, starts: Starts, sizes: tuple[int, ...]) -> ArrayView:
        key = tuple(
            slice(s := min(max(int(at), 0), int(n) - int(size)), s + int(size))
            for at, size, n in zip(starts, sizes, store.shape, strict=True)
        )
        box = store[key]
        return box.view(box.layout, sizes).copy()

    def read_all(self, store: ArrayView) -> ArrayView:
        return store

    def gather(self, store: ArrayView, axis: int, at: Operand) -> ArrayView:
        return self.xp.take(store, self.xp.clip(at, 0, store.shape[axis] - 1), axis)

    def write(
        self, store: ArrayView, starts: Starts, value: object, also: object = None
    ) -> ArrayView:
        return store

    write_box = write


def named(value: Named, name: str) -> Named:
    """Name a new value after its equation; arrays without a name are temporaries."""
    if isinstance(value, ArrayView) and (label := value.label) is not None and not label.name:
        label.name = name
    return value


def name_variable(value: object, name: str) -> None:
    """Rename a variable to its name inside the launch."""
    if isinstance(value, tuple):
        for x in value:
            name_variable(x, name)
    elif isinstance(value, ArrayView) and (label := value.label) and label.kind == "made":
        label.name = name


@dataclass(frozen=True)
class _LocalStoreWalk(ScheduleInterpreter):
    """A walk that frees a region's own stores after the last of its items that uses them."""

    region: Region = field(kw_only=True)
    make: Callable[[Store], ArrayView] = field(kw_only=True)

    def items(self, items: tuple[Item, ...], state: Scope, active: frozenset[str]) -> None:
        if not self.region.local or items != self.region.items:
            super().items(items, state, active)
            return
        for n in self.region.local:
            state.stores[n] = self.make(self.plan.stores[n])
        for k, it in enumerate(items):
            super().items((it,), state, active)
            left = stores_of(self.plan, members(items[k + 1 :]))
            for n in {*self.region.local} - {*left}:
                state.stores.pop(n, None)


@dataclass(frozen=True)
class StatementRegions:
    """Regions that run statement by statement, as NumPy runs them."""

    meter: Meter
    machine: ShapeMachine

    def compile(self, plan: StoragePlan, region: Region) -> Compiled:
        make = partial(allocate_store, self.meter, plan)
        walker = partial(_LocalStoreWalk, region=region, make=make)
        without_local = replace(region, local=())
        run = region_function(plan, without_local, self.machine, walker, here=lambda: {SHARD: 0})
        names = (*region.held, *region.carried)
        first = 1 + times(region)

        def launch(*args: Any) -> tuple[ArrayTree, ...]:
            for x, name in zip(args[first:], names, strict=False):
                name_variable(x, name)
            results = run(*args)
            values = results[-len(region.gives) - len(region.stores) :]
            for x, name in zip(values, region.gives, strict=False):
                name_variable(x, name)
            return results

        return launch


class LaunchMemory(Protocol):
    """A backend that knows the memory of a launch besides its operands and results."""

    donates: bool  # carried variables: else they are new with every launch

    def temporary_bytes(self, plan: StoragePlan, region: Region, at: tuple[int, ...]) -> int:
        """Return the bytes of a launch at these times."""
        ...


def knows_temporary_bytes(backend: object) -> TypeGuard[LaunchMemory]:
    return hasattr(backend, "temporary_bytes")


@dataclass(frozen=True)
class MeteredLaunches:
    """Regions that are one launch each; `plan` has plain numbers for lengths."""

    meter: Meter
    backend: LaunchMemory
    plan: StoragePlan

    def compile(self, plan: StoragePlan, region: Region) -> Compiled:
        first, r = 1 + times(region), region
        kept = len(r.carried) if self.backend.donates else 0

        def launch(*args: Any) -> tuple[ArrayTree, ...]:
            self.meter.at = r.name
            at, carried = args[1:first], args[first + len(r.held) :]
            new = [fresh(self.meter, plan, name) for name in r.gives[kept:]]
            nbytes = self.backend.temporary_bytes(self.plan, r, tuple(map(int, at)))
            self.meter.fixed |= nbytes > 0
            self.meter.extra(nbytes, f"inside of {r.name}")  # freed at once
            ends = at[len(at) - len(r.ends) :] if r.polls else ()
            stores = carried[len(r.carried) : len(r.carried) + len(r.stores)]
            return (*ends, *carried[:kept], *new, *stores)

        return launch


def fresh(meter: Meter, plan: StoragePlan, name: str) -> ArrayTree:
    """Allocate a variable of a program."""
    type_ = plan.statements.arrays[name].type
    types = type_.items if isinstance(type_, Tuple) else (type_,)
    arrays = tuple(
        named(allocated(meter, t.sizes(plan.sizes), NUMPY_NAME[t.dtype]), name) for t in types
    )
    return arrays if isinstance(type_, Tuple) else arrays[0]


def allocate_store(meter: Meter, plan: StoragePlan, buffer: Store) -> ArrayView:
    """Allocate a buffer of a store."""
    kind = "input" if buffer.given else "output" if buffer.output else "store"
    meter.at = f"the store of {buffer.name}"
    shape, dtype = buffer.shape(plan.sizes), NUMPY_NAME[buffer.type.dtype]
    return allocated(meter, shape, dtype, kind=kind, name=buffer.name)


def copied(value: Any) -> Any:
    """Copy an array to a new buffer with the same name."""
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if isinstance(value, np.generic | np.ndarray):
        return value
    return named(value.copy(), value.label.name if value.label else "")
