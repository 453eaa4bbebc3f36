"""Regions on arrays without numbers: what they allocate where NumPy, or a backend, runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np

from recurra.codegen.array_machine import Starts, Until
from recurra.codegen.loop_segments import few, members
from recurra.codegen.region import Region, stores_of
from recurra.codegen.region_function import region_function, times
from recurra.codegen.schedule_interpreter import Scope, Walk
from recurra.ir.expr import Env
from recurra.ir.statement import Statement
from recurra.ir.types import NUMPY_NAME, Tuple
from recurra.memory_model.array_namespace import AllocatingNamespace, Operand
from recurra.memory_model.arrays import ArrayView, allocated
from recurra.memory_model.peak_meter import Meter
from recurra.ops.collective import SHARD
from recurra.ops.control import Foreign
from recurra.schedule.tree import Item
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store

Made = ArrayView | tuple["Made", ...]
"""An array, or the arrays of a tuple"""
Compiled = Callable[..., tuple[Made, ...]]
Carry = TypeVar("Carry")
Named = TypeVar("Named")


@dataclass(frozen=True)
class ShapeMachine:
    """Runs `steps(lo, hi)` of every loop; rows end as late as they can."""

    meter: Meter
    steps: Callable[[int, int], Sequence[int]] = few

    @property
    def xp(self) -> Any:
        return AllocatingNamespace(self.meter)

    def apply(self, node: Statement, env: Env, *args: object) -> Made:
        point = ", ".join(
            f"{r.dim}={env[r.dim]}" for r in node.domain if isinstance(env[r.dim], int)
        )
        self.meter.at = node.name + (f" of {point}" if point else "")
        if isinstance(op := node.op, Foreign):
            made: Made = allocated(self.meter, op.infer().sizes(env), NUMPY_NAME[op.dtype])
        else:
            made = node.op.run(self.xp, env, *args)
        return named(made, node.name)

    def loop(
        self, dim: str, lo: int, hi: int, body: Callable[[int, Carry], Carry], carry: Carry
    ) -> Carry:
        for time in self.steps(lo, hi):
            carry = body(time, carry)
        return carry

    def until(
        self, dim: str, lo: int, hi: int, end: int, late: int, every: int, body: Until, carry: Carry
    ) -> tuple[int, Carry]:
        for time in self.steps(lo, min(hi, end + late)):
            _, _, carry = body(time, carry)
        return end, carry

    def when(self, condition: object, body: Callable[[Carry], Carry], carry: Carry) -> Carry:
        return body(carry)

    def lesser(self, left: int, right: int) -> int:
        return min(left, right)

    def read(self, store: ArrayView, starts: Starts, sizes: tuple[int, ...]) -> ArrayView:
        key = tuple(
            slice(s := min(max(int(at), 0), int(n) - int(size)), s + int(size))
            for at, size, n in zip(starts, sizes, store.shape, strict=True)
        )
        box = store[key]
        return box.seen(box.layout, sizes).copy()

    def whole(self, store: ArrayView) -> ArrayView:
        return store

    def gather(self, store: ArrayView, axis: int, at: Operand) -> ArrayView:
        return self.xp.take(store, self.xp.clip(at, 0, store.shape[axis] - 1), axis)

    def write(
        self, store: ArrayView, starts: Starts, value: object, also: object = None
    ) -> ArrayView:
        return store

    write_box = write


def named(made: Named, name: str) -> Named:
    """Name a new value after its equation; other new arrays are temporaries."""
    if isinstance(made, ArrayView) and (label := made.label) is not None and not label.name:
        label.name = name
    return made


def name_variable(given: object, name: str) -> None:
    """A variable that is lent to a launch goes by the name that it has there."""
    if isinstance(given, tuple):
        for x in given:
            name_variable(x, name)
    elif (
        isinstance(given, ArrayView) and (label := given.label) is not None and label.kind == "made"
    ):
        label.name = name


def _first_worker() -> Mapping[str, int]:
    return {SHARD: 0}


@dataclass(frozen=True)
class _LettingGo(Walk):
    """A region whose own stores are gone behind the last of its items that uses them."""

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
class Shapes:
    """Regions statement by statement, as NumPy runs them."""

    meter: Meter
    machine: ShapeMachine

    def compile(self, plan: StoragePlan, region: Region) -> Compiled:
        make = partial(store, self.meter, plan)
        walker = partial(_LettingGo, region=region, make=make)
        alone = replace(region, local=())
        run = region_function(plan, alone, self.machine, walker, here=_first_worker)
        names = (*region.held, *region.carried)
        first = 1 + times(region)

        def launch(*given: Any) -> tuple[Made, ...]:
            for x, name in zip(given[first:], names, strict=False):
                name_variable(x, name)
            made = run(*given)
            for x, name in zip(
                made[-len(region.gives) - len(region.stores) :], region.gives, strict=False
            ):
                name_variable(x, name)
            return made

        return launch


class Besides(Protocol):
    """A backend that tells what a launch takes beside what it is given and gives."""

    donates: bool  # variables that travel: else they are new with every launch

    def besides(self, plan: StoragePlan, region: Region, at: tuple[int, ...]) -> int:
        """Bytes, of a launch at these times."""
        ...


def tells_besides(backend: object) -> TypeGuard[Besides]:
    """Is it a backend that tells what a launch takes besides?"""
    return hasattr(backend, "besides")


@dataclass(frozen=True)
class MeteredLaunches:
    """Regions as one launch each; `plan` is the one with numbers."""

    meter: Meter
    backend: Besides
    plan: StoragePlan

    def compile(self, plan: StoragePlan, region: Region) -> Compiled:
        first, r = 1 + times(region), region
        kept = len(r.carried) if self.backend.donates else 0

        def launch(*given: Any) -> tuple[Made, ...]:
            self.meter.at = r.name
            at, carried = given[1:first], given[first + len(r.held) :]
            new = [fresh(self.meter, plan, name) for name in r.gives[kept:]]
            taken = self.backend.besides(self.plan, r, tuple(map(int, at)))
            self.meter.asked |= taken > 0
            del_ = self.meter.extra(taken, f"inside of {r.name}")
            del del_
            ends = at[len(at) - len(r.ends) :] if r.asks else ()
            stores = carried[len(r.carried) : len(r.carried) + len(r.stores)]
            return (*ends, *carried[:kept], *new, *stores)

        return launch


def fresh(meter: Meter, plan: StoragePlan, name: str) -> Made:
    """A variable of a program."""
    type_ = plan.statements.arrays[name].type
    kinds = type_.items if isinstance(type_, Tuple) else (type_,)
    made = tuple(
        named(allocated(meter, t.sizes(plan.sizes), NUMPY_NAME[t.dtype]), name) for t in kinds
    )
    return made if isinstance(type_, Tuple) else made[0]


def store(meter: Meter, plan: StoragePlan, buffer: Store) -> ArrayView:
    """A buffer of a store."""
    kind = "input" if buffer.given else "output" if buffer.output else "store"
    meter.at = f"the store of {buffer.name}"
    shape, dtype = buffer.shape(plan.sizes), NUMPY_NAME[buffer.type.dtype]
    return allocated(meter, shape, dtype, kind=kind, name=buffer.name)


def copied(value: Any) -> Any:
    """An array in memory of its own, with the name of what it was."""
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if isinstance(value, np.generic | np.ndarray):
        return value
    made = value.copy()
    return named(made, value.label.name if value.label else "")
