"""The interpreter of schedules, on an array namespace: point by point, or under a backend's trace.

NumPy runs it step by step, JAX traces it into one function. It keeps the emission contract: values
that the next step needs are carried as variables, a store has one linear chain of versions, and
each step writes before it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from recurra.codegen.aliased_stores import read_home, write_home
from recurra.codegen.array_machine import ArrayMachine, LoopTime, MachineArray, MachineStore
from recurra.codegen.early_exit import (
    EarlyExit,
    LastValue,
    PostExitValues,
    early_exits,
    fillable,
    reach,
    read_inside,
)
from recurra.codegen.guarded_statements import Guard, Guarded, condition_reader, guarded
from recurra.codegen.loop_segments import LoopSegment, open_ends, segments
from recurra.codegen.store_access import blank, full, masked, read, write
from recurra.codegen.tiled_stores import only_tile, slot, stored_tile
from recurra.ir.expr import Env, evaluate
from recurra.ir.graph import Graph, Ref, Slice
from recurra.ir.op import Op
from recurra.ir.statement import Statement, StatementGraph
from recurra.ir.types import NUMPY_NAME
from recurra.ops.collective import JOIN
from recurra.ops.contraction import Einsum
from recurra.ops.control import RESULTS, Foreign, Merge
from recurra.ops.reduction import Fold
from recurra.ops.source import Input
from recurra.schedule.tree import TOP, Exec, Item, Loop, is_constant, members
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Kind, Store

Traveling = tuple[list[object], list[MachineStore]]  # loop-carried variables and stores
OneStep = Callable[[LoopTime, Traveling], "tuple[Scope, Traveling]"]


@dataclass
class Scope:
    """The variables and stores by name, and the times of the loops around by dim."""

    vals: dict[str, object]
    stores: dict[str, MachineStore]
    env: dict[str, Any] = field(default_factory=dict)
    clocks: tuple[tuple[Loop, LoopTime], ...] = ()
    ends: dict[str, LoopTime] = field(default_factory=dict)  # where rows end, by `Going` statement
    active: frozenset[str] = frozenset()  # the statements that run at these times
    assumed: Guard = frozenset()  # conditions that hold here
    # results of calls at this point
    called: dict[object, list[object]] = field(default_factory=dict, init=False)


@dataclass(frozen=True)
class CarriedNames:
    """The names of the variables and stores that a loop or a condition may change."""

    variables: list[str]
    stores: list[str]

    def of(self, state: Scope) -> Traveling:
        """Their values in a scope."""
        return [state.vals[n] for n in self.variables], [state.stores[n] for n in self.stores]

    def update(self, state: Scope, carry: Traveling) -> Scope:
        """Set their values in a scope; return it."""
        state.vals.update(zip(self.variables, carry[0], strict=True))
        state.stores.update(zip(self.stores, carry[1], strict=True))
        return state


@dataclass(frozen=True)
class ScheduleInterpreter:
    """An interpreter of a plan on a machine."""

    plan: StoragePlan
    machine: ArrayMachine
    found: dict[object, list[Guarded]] = field(default_factory=dict, compare=False)

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    @property
    def statements(self) -> StatementGraph:
        return self.plan.statements

    @cached_property
    def endings(self) -> tuple[EarlyExit, ...]:
        return early_exits(self.plan.schedule, self.plan.sizes)

    def items(self, items: tuple[Item, ...], state: Scope, active: frozenset[str]) -> None:
        state.active = active
        if not items or not (self.statements.guarded or self.plan.schedule.predicated):
            self.run_items(items, state, active)
            return
        for g in self.guards(items, state, active):
            run = partial(self.when, g) if g.when else partial(self.run_items, g.items)
            run(state, active)

    def guards(
        self, items: tuple[Item, ...], state: Scope, active: frozenset[str]
    ) -> list[Guarded]:
        """Group items by the conditions under which they run; cached for all steps of a loop."""
        around = [loop for loop, _ in state.clocks]
        first = items[0].name if isinstance(items[0], Exec) else items[0].id
        key = (around[-1].id if around else TOP, first, len(items), active, state.assumed)
        if key not in self.found:
            self.found[key] = guarded(self.plan, items, active, around, state.assumed)
        return self.found[key]

    def when(self, guarded: Guarded, state: Scope, active: frozenset[str]) -> None:
        """Run items under a condition; where it does not hold, all values stay as they were."""
        carried = self.carried(guarded.gives, guarded.stores, state)

        def body(carry: Traveling) -> Traveling:
            vals, stores = dict(state.vals), dict(state.stores)
            inner = replace(state, vals=vals, stores=stores, assumed=state.assumed | guarded.when)
            self.run_items(guarded.items, carried.update(inner, carry), active)
            return carried.of(inner)

        env = {**self.plan.sizes, **{loop.dim: time for loop, time in state.clocks}}
        conditions = [evaluate(guarded.condition, env, self.machine.xp)]
        around = [loop for loop, _ in state.clocks]
        for c in guarded.on_data:
            name, k = condition_reader(self.plan, c, guarded.items, around)
            reader = self.statements[name]
            truth: Any = self.value(name, k, reader.args[k], state, self.point(name, state))
            conditions.append(truth if c.holds else self.machine.xp.logical_not(truth))
        run = body
        for c in reversed(conditions):
            run = partial(self.machine.cond, c, run)
        carried.update(state, run(carried.of(state)))

    def carried(
        self, variables: Iterable[str], stores: Iterable[str], state: Scope
    ) -> CarriedNames:
        """The variables, zeros where they have no value yet, and stores that change in a scope."""
        names = list(variables)
        for n in names:
            if n not in state.vals:
                state.vals[n] = self.blank(n)
        return CarriedNames(names, [n for n in stores if n in state.stores])

    def run_items(self, items: tuple[Item, ...], state: Scope, active: frozenset[str]) -> None:
        for it in items:
            if isinstance(it, Exec):
                if it.name in active:
                    self.execute(it.name, state)
            else:
                self.seed(it, state, active)
                first = open_ends(self.statements, it, active, self.plan.sizes)
                if first is not None:
                    self.open(it, first, active, state)
                    continue
                ending = self.ending(it, active, state)
                if ending is not None and it.step < 0:  # it may read points that it skips
                    inside = read_inside(self.plan, it, active)
                    self.fill(ending, it, inside, state, ("full", "circular"))
                for seg in segments(self.statements, it, active, self.plan.sizes):
                    if ending is None:
                        self.run(it, seg.lo, seg.hi, seg.active, state)
                    else:
                        self.part(ending, it, seg, state)
                if ending is not None:
                    self.fill(ending, it, active, state)

    def seed(self, loop: Loop, state: Scope, active: frozenset[str]) -> None:
        """Initialize the variables that enter a loop with a value: the first branch of a merge."""
        for name, init in self.plan.initial_values.get(loop.id, ()):
            if name in active:
                state.vals[name] = self.latest(init, state)

    def open(self, loop: Loop, first: str, active: frozenset[str], state: Scope) -> None:
        """Run a loop whose ends depend on the point of the loops around it."""
        env, xp = self.point(first, state), self.machine.xp
        r = self.statements[first].domain[loop.dim]
        lo, hi = evaluate(r.lo, env, xp), evaluate(r.hi, env, xp)
        if loop.step < 0:
            lo, hi = 1 - hi, 1 - lo
        self.run(loop, lo, hi, active & frozenset(members(loop.body)), state)

    def run(
        self, loop: Loop, lo: LoopTime, hi: LoopTime, active: frozenset[str], state: Scope
    ) -> None:
        """Run times lo..hi-1 of one loop with a fixed set of statements."""
        carried, step = self.steps(loop, active, state)

        def body(time: LoopTime, carry: Traveling) -> Traveling:
            return step(time, carry)[1]

        start = carried.of(state)
        if isinstance(lo, int) and isinstance(hi, int) and hi - lo == 1:
            carried.update(state, body(lo, start))
        else:
            carried.update(state, self.machine.loop(loop.dim, lo, hi, body, start))

    def steps(
        self, loop: Loop, active: frozenset[str], state: Scope
    ) -> tuple[CarriedNames, OneStep]:
        """Return what a loop carries, and the function of one step."""
        mine = set(map(self.plan.written, active))
        names = sorted(self.plan.carried.get(loop.id, ()))
        carried = self.carried(
            (n for n in names if n in active or n in state.vals),
            (n for n in self.plan.stores if n in mine),
            state,
        )

        def step(time: LoopTime, carry: Traveling) -> tuple[Scope, Traveling]:
            inner = Scope(
                dict(state.vals),
                dict(state.stores),
                dict(state.env),
                (*state.clocks, (loop, time)),
                dict(state.ends),
                assumed=state.assumed,
            )
            self.begin(loop.id, carried.update(inner, carry), active)
            self.items(loop.body, inner, active)
            return inner, carried.of(inner)

        return carried, step

    # ---- loops that the data end

    def stretch(self, loop: Loop, seg: LoopSegment[LoopTime], state: Scope) -> None:
        """Run a chunk of an outermost loop, as far as rows go."""
        ending = next((e for e in self.endings if e.going in state.ends), None)
        if ending is None:
            self.run(loop, seg.lo, seg.hi, seg.active, state)
        else:
            self.part(ending, loop, seg, state)

    def ending(self, loop: Loop, active: frozenset[str], state: Scope) -> EarlyExit | None:
        """The ending of a loop by data: by its own statement, or by one of a loop before it."""
        for e in self.endings:
            if e.sets(loop) and e.going in active:
                return e
            if e.going in state.ends and loop.dim in e.units and loop.id not in e.later:
                self.past_end(e, loop, active, state)
                return e
        return None

    def past_end(self, ended: EarlyExit, loop: Loop, active: frozenset[str], state: Scope) -> None:
        """Initialize a loop that runs backwards, and so starts at the end of rows."""
        past = PostExitValues(self.graph, ended, loop.dim)
        for n in sorted(self.plan.carried.get(loop.id, ())) if loop.step < 0 else ():
            value = past.value(n) if n in active and n in self.graph.nodes else None
            if isinstance(value, int | float):
                state.vals[n] = full(self.plan, n, value, self.machine.xp)

    def part(self, ended: EarlyExit, loop: Loop, seg: LoopSegment[LoopTime], state: Scope) -> None:
        """Run one segment of a loop, as far as rows go."""
        shifts = [loop.shift[s] for s in members(loop.body) if s in loop.shift]
        late = max(shifts)
        if ended.sets(loop) and ended.going in seg.active:
            self.until(ended, loop, seg, late, state)
            return
        if ended.going not in state.ends:
            self.run(loop, seg.lo, seg.hi, seg.active, state)
            return
        end = self.steps_of(ended, loop, state)
        if loop.step > 0:
            self.run(loop, seg.lo, self.machine.minimum(seg.hi, end + late), seg.active, state)
        else:
            first = -self.machine.minimum(-seg.lo, end - (min(shifts) + 1))
            self.run(loop, first, seg.hi, seg.active, state)

    def steps_of(self, ended: EarlyExit, loop: Loop, state: Scope) -> LoopTime:
        """The number of steps of a loop until all rows have ended."""
        unit, points = ended.units[loop.dim], state.ends[ended.going]
        return (points + (unit - 1)) // unit if unit > 1 else points

    def until(
        self, ended: EarlyExit, loop: Loop, seg: LoopSegment[LoopTime], late: int, state: Scope
    ) -> None:
        """Run the segment that finds out where rows end."""
        carried, step = self.steps(loop, seg.active, state)

        def body(time: LoopTime, carry: Traveling) -> tuple[object, LoopTime, Traveling]:
            inner, after = step(time, carry)
            more: Any = inner.vals[ended.going]
            goes_on = self.machine.xp.any(more) if len(more.shape) else more
            if JOIN in state.env:  # all workers run as long as one of them has a row
                goes_on = state.env[JOIN]("logical_or", goes_on)
            return goes_on, time - loop.shift[ended.going] + 1, after

        end = state.ends.get(ended.going, ended.points)
        end, carry = self.machine.while_loop(
            loop.dim, seg.lo, seg.hi, end, late, ended.every, body, carried.of(state)
        )
        carried.update(state, carry)
        state.ends[ended.going] = end

    def tail(self, going: str, loop: Loop, active: frozenset[str], state: Scope) -> None:
        """Fill the points that a loop of the host skipped; see `fill`."""
        (e,) = [e for e in self.endings if e.going == going]
        self.fill(e, loop, active, state)

    def fill(
        self,
        ended: EarlyExit,
        loop: Loop,
        active: frozenset[str],
        state: Scope,
        kinds: Collection[Kind] = ("full",),
    ) -> None:
        """Write skipped points of stores with the value that readers rely on.

        A window is filled in as many points as it has slots: a loop backwards overwrites them.
        """
        past, end = PostExitValues(self.graph, ended, loop.dim), self.steps_of(ended, loop, state)
        groups: dict[tuple[int, int | None], list[str]] = {}
        for n in fillable(self.plan, loop, active, kinds):
            if n not in state.stores:
                continue
            hi = evaluate(self.graph[n].domain[loop.dim].hi, self.plan.sizes)
            read = reach(self.plan, ended, n, len(state.clocks), active)
            axis = next(a for a in self.plan.stores[n].kept if a.dim == loop.dim)
            if axis.kind == "circular":
                read = axis.slots if read is None else min(read, axis.slots)
            if read != 0:
                groups.setdefault((hi, read), []).append(n)
        for (hi, read), names in groups.items():

            def body(point: LoopTime, carry: Traveling, names: list[str] = names) -> Traveling:
                filled = [
                    self.fill_point(n, loop, point, x, past, state)
                    for n, x in zip(names, carry[1], strict=True)
                ]
                return [], filled

            last = hi if read is None else self.machine.minimum(hi, end + read)
            start = ([], [state.stores[n] for n in names])
            _, stores = self.machine.loop(loop.dim, end, last, body, start)
            state.stores.update(zip(names, stores, strict=True))

    def fill_point(
        self,
        name: str,
        loop: Loop,
        point: LoopTime,
        array: MachineStore,
        past: PostExitValues,
        state: Scope,
    ) -> MachineStore:
        """Fill one point of a loop in a store, for all points of the loops inside it."""
        store = self.plan.stores[name]
        k = next(k for k, a in enumerate(store.kept) if a.dim == loop.dim)
        writer = next(s for s in members(loop.body) if self.statements[s].array == name)
        env = {**self.point(writer, state), loop.dim: point}
        starts = tuple(slot(a, env[a.dim]) for a in store.kept[: k + 1])
        value, inner = past.value(name), tuple(a.slots // a.tile for a in store.kept[k + 1 :])
        if isinstance(value, LastValue):
            return self.machine.write(array, starts, self.latest(value.name, state))
        shape = (*inner, *store.point_shape(self.plan.sizes))
        fill = value if isinstance(value, int | float) else 0
        x = self.machine.xp.full(shape, fill, dtype=NUMPY_NAME[store.type.dtype])
        return self.machine.write(array, starts, x)

    def begin(self, where: int, state: Scope, active: frozenset[str]) -> None:
        """Reset the folds that start anew here to their neutral value."""
        for step in self.plan.starts.get(where, ()):
            if step in active:
                state.vals[step] = self.blank(step)

    def blank(self, name: str) -> object:
        return blank(self.plan, name, self.machine.xp)

    def execute(self, statement: str, state: Scope) -> None:
        """Execute one statement at the current point."""
        env = self.point(statement, state)
        node = self.statements[statement]
        if node.accumulates:
            assert isinstance(node.op, Fold)
            part = self.value(statement, 0, node.args[0], state, env)
            join = Op.registry[node.op.monoid_of]()
            state.vals[node.array] = join.eval(self.machine.xp, state.vals[node.array], part)
            return
        if isinstance(node.op, Merge):
            result = self.merge(node, node.op, state, env)
        elif isinstance(node.op, Input):
            state.vals[node.array] = self.read(self.plan.stores[node.array], node.write, state, env)
            return
        elif isinstance(node.op, Einsum):
            result = self.product(node, node.op, state, env)
        else:
            args = [self.value(statement, k, a, state, env) for k, a in enumerate(node.operands)]
            if isinstance(node.op, Foreign):
                late = tuple(loop.shift[statement] for loop, _ in state.clocks)
                call = node.op.fn.key, node.op.vmaps, node.operands, late
                env[RESULTS] = state.called.setdefault(call, [])
            result = self.machine.apply(node, env, *args)
        state.vals[node.array] = result
        self.keep(node, result, state, env)

    def product(self, node: Statement, op: Einsum, state: Scope, env: Env) -> object:
        """Contract operands in their memory layout of tiles: labels say which axis is which."""
        ins, out = op.parts()
        labels, args = list(ins), list[Any]()
        for k, a in enumerate(node.operands):
            store = self.plan.stores.get(a.name)
            index = dict(zip(self.statements.arrays[a.name].domain.dims, a.index, strict=True))
            stored = self.plan.access(node.name, k) == "store"
            if stored and a.name in self.plan.homes:
                box, axes = self.at_home(a, state, env)
                args.append(box)
                labels[k] = "".join(ins[k][x] for x in axes)
            elif stored and store is not None and only_tile(store, index):
                array = state.stores[a.name]
                box = stored_tile(self.machine, array, store, index, env)[0]
                (part,) = (e for e in index.values() if isinstance(e, Slice))
                args.append(masked(self.machine, box, store.order.index(0), part, env))
                labels[k] = "".join(ins[k][x] for x in store.order)
            else:
                args.append(self.value(node.name, k, a, state, env))
        same = replace(op, labels=f"{','.join(labels)}->{out}")
        return self.machine.apply(replace(node, op=same), env, *args)

    def point(self, statement: str, state: Scope) -> dict[str, Any]:
        env = {**self.plan.sizes, **state.env}
        for loop, time in state.clocks:
            env[loop.dim] = loop.point(statement, time)
        return env

    def merge(self, node: Statement, op: Merge, state: Scope, env: Env) -> object:
        """The branch whose condition holds; several are read if that is known at run time."""
        if node.name in self.plan.initial_merges:
            return self.latest(node.args[1].name, state)
        conditions = [evaluate(c, env, self.machine.xp) for c in op.when]
        holds = next((k for k, c in enumerate(conditions) if c is True), len(conditions))
        may = self.plan.open(node, state.active)
        live = [k for k, c in enumerate(conditions[:holds]) if c is not False and k in may]
        live += [holds] * (holds < len(conditions))
        result = self.value(node.name, live[-1], node.args[live[-1]], state, env)
        for k in reversed(live[:-1]):
            other = self.value(node.name, k, node.args[k], state, env)
            result = self.machine.xp.where(conditions[k], other, result)
        return result

    def value(self, sink: str, index: int, ref: Ref, state: Scope, env: Env) -> object:
        access = self.plan.accesses[sink, index]
        if access == "store" and ref.name in self.plan.homes:
            box, axes = self.at_home(ref, state, env)
            return self.machine.xp.permute_dims(box, tuple(map(axes.index, range(len(axes)))))
        if access == "store":
            return self.read(self.plan.stores[ref.name], ref, state, env)
        return self.latest(ref.name, state)

    def latest(self, name: str, state: Scope) -> object:
        """The variable of an equation; constants are computed where they are used."""
        if name not in state.vals:
            (writer, *_) = self.statements.writers[name]
            if is_constant(writer):
                env = {**self.plan.sizes, **state.env}
                state.vals[name] = writer.op.run(self.machine.xp, env)
            else:  # before the first step: a branch that is not taken
                state.vals[name] = self.blank(name)
        return state.vals[name]

    # ---- stores

    def keep(self, statement: Statement, value: object, state: Scope, env: Env) -> None:
        """Write a statement's value to its store, if it has one."""
        name, dims = statement.array, self.statements.arrays[statement.array].domain.dims
        env = {**env, **{d: evaluate(e, env) for d, e in zip(dims, statement.places, strict=True)}}
        home = self.plan.homes.get(name)
        if home is not None:
            store, array = self.plan.stores[home.store], state.stores[home.store]
            state.stores[home.store] = write_home(self.machine, array, store, home, value, env)
        elif name in state.stores:
            self.write(self.plan.stores[name], value, state, env)

    def at_home(self, ref: Ref, state: Scope, env: Env) -> tuple[MachineArray, tuple[int, ...]]:
        """Read a point that is kept in another store, in its layout there; and its axis order."""
        home = self.plan.homes[ref.name]
        dims = self.statements.arrays[ref.name].domain.dims
        at = {d: evaluate(e, env, self.machine.xp) for d, e in zip(dims, ref.index, strict=True)}
        store, array = self.plan.stores[home.store], state.stores[home.store]
        return read_home(self.machine, array, store, home, {**env, **at})

    def write(self, store: Store, value: object, state: Scope, env: Env) -> None:
        array = state.stores[store.name]
        state.stores[store.name] = write(self.machine, array, store, value, env)

    def read(self, store: Store, ref: Ref, state: Scope, env: Env) -> MachineArray:
        """Read a reference: slices are leading axes, in the order of dims."""
        dims = self.statements.arrays[store.name].domain.dims
        index = dict(zip(dims, ref.index, strict=True))
        return read(self.machine, state.stores[store.name], store, index, env, self.plan.sizes)
