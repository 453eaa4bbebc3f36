"""walk: runs scheduled items on an array namespace, point by point or under a backend's trace.

The one interpreter of schedules: NumPy runs it step by step, JAX traces it into one function. It
keeps the emission contract: values that the next step needs travel as variables, a store has one
linear chain of versions, and each step writes before it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import Op
from recurra.ir.types import NUMPY_NAME, Tuple
from recurra.memory.plan import Plan
from recurra.memory.store import Axis, Store
from recurra.ops.control import Merge
from recurra.ops.reduction import Fold, identity
from recurra.ops.source import Input
from recurra.program.steps import segments
from recurra.schedule.tree import ADD, Exec, Item, Loop, equation, is_constant, is_step

Array = Any


class Machine(Protocol):
    """What a backend gives the walk."""

    xp: Any

    def apply(self, node: Node, env: Mapping[str, Any], *args: Array) -> Array:
        """The operator of an equation at a point."""
        ...

    def loop(self, dim: str, lo: Any, hi: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        """carry after body(time, carry) for lo <= time < hi."""
        ...

    def read(self, store: Array, starts: tuple[Any, ...], sizes: tuple[int, ...]) -> Array:
        """A box of a store, its starts clamped so that it lies inside."""
        ...

    def gather(self, store: Array, axis: int, at: Array) -> Array:
        """Elements of one axis at positions (clamped)."""
        ...

    def write(self, store: Array, starts: tuple[Any, ...], value: Array) -> Array:
        """The store with the value at a point of its first axes replaced."""
        ...


@dataclass
class State:
    """Variables and stores, by name; times of the loops around, by dim."""

    vals: dict[str, Any]
    stores: dict[str, Any]
    env: dict[str, Any] = field(default_factory=dict)
    clocks: tuple[tuple[Loop, Any], ...] = ()


@dataclass(frozen=True)
class Walk:
    """A plan on a machine."""

    plan: Plan
    machine: Machine

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def items(self, items: tuple[Item, ...], state: State, active: frozenset[str]) -> None:
        for it in items:
            if isinstance(it, Exec):
                if it.name in active:
                    self.execute(it.name, state)
            else:
                self.seed(it, state, active)
                for seg in segments(self.graph, it, active, self.plan.sizes):
                    self.run(it, seg.lo, seg.hi, seg.active, state)

    def seed(self, loop: Loop, state: State, active: frozenset[str]) -> None:
        """Variables that enter a loop with a value: the first branch of a merge."""
        for name, init in self.plan.seeds.get(id(loop), ()):
            if name in active:
                state.vals[name] = self.latest(init, state)

    def run(self, loop: Loop, lo: Any, hi: Any, active: frozenset[str], state: State) -> None:
        """Times lo..hi-1 of one loop with a fixed set of statements."""
        written = [n for n in self.plan.stores if n in active and n in state.stores]
        names = [
            n for n in sorted(self.plan.carried.get(id(loop), ())) if n in active or n in state.vals
        ]
        for n in names:
            if n not in state.vals:
                state.vals[n] = self.blank(n)

        def body(time: Any, carry: Any) -> Any:
            vals, stores = carry
            inner = State(
                {**state.vals, **dict(zip(names, vals, strict=True))},
                {**state.stores, **dict(zip(written, stores, strict=True))},
                dict(state.env),
                (*state.clocks, (loop, time)),
            )
            self.begin(id(loop), inner, active)
            self.items(loop.body, inner, active)
            return [inner.vals[n] for n in names], [inner.stores[n] for n in written]

        start = ([state.vals[n] for n in names], [state.stores[n] for n in written])
        if isinstance(lo, int) and isinstance(hi, int) and hi - lo == 1:
            vals, stores = body(lo, start)
        else:
            vals, stores = self.machine.loop(loop.dim, lo, hi, body, start)
        state.vals.update(zip(names, vals, strict=True))
        state.stores.update(zip(written, stores, strict=True))

    def begin(self, where: int, state: State, active: frozenset[str]) -> None:
        """Folds that start anew here take their neutral value."""
        for step in self.plan.starts.get(where, ()):
            if step in active:
                state.vals[step] = self.blank(step)

    def blank(self, name: str) -> Array:
        """Zeros, or the neutral element of a fold."""
        node = self.graph[equation(name)]
        assert not isinstance(node.type, Tuple)
        value: Any = 0
        if isinstance(node.op, Fold):
            value = neutral(node.op, node.type.dtype)
        shape = node.type.sizes(self.plan.sizes)
        return self.machine.xp.full(shape, value, dtype=NUMPY_NAME[node.type.dtype])

    def execute(self, statement: str, state: State) -> None:
        """One equation at the current point."""
        env = self.point(statement, state)
        node = self.graph[equation(statement)]
        if is_step(statement):
            op: Any = node.op
            part = self.value(statement, 0, self.graph.read(node.args[0].name), state, env)
            join = Op.registry[op.monoid_of]()
            state.vals[statement] = join.eval(self.machine.xp, state.vals[statement], part)
            return
        if isinstance(node.op, Fold):
            result = state.vals[ADD + node.name]
        elif isinstance(node.op, Merge):
            result = self.merge(node, node.op, state, env)
        elif isinstance(node.op, Input):
            ref = self.graph.read(node.name)
            state.vals[statement] = self.read(self.plan.stores[node.name], ref, state, env)
            return
        else:
            args = [self.value(statement, k, a, state, env) for k, a in enumerate(node.args)]
            result = self.machine.apply(node, env, *args)
        state.vals[statement] = result
        if node.name in state.stores:
            self.write(self.plan.stores[node.name], result, state, env)

    def point(self, statement: str, state: State) -> dict[str, Any]:
        env: dict[str, Any] = {**self.plan.sizes, **state.env}
        for loop, time in state.clocks:
            t = time - loop.shift[statement]
            env[loop.dim] = t if loop.step > 0 else -t
        return env

    def merge(self, node: Node, op: Merge, state: State, env: Mapping[str, Any]) -> Array:
        """The branch whose condition holds; both sides are read where that is only known later."""
        if node.name in self.plan.seeded:
            return self.latest(node.args[1].name, state)
        conditions = [evaluate(c, env, self.machine.xp) for c in op.when]
        if all(isinstance(c, bool) for c in conditions):
            k = conditions.index(True)
            return self.value(node.name, k, node.args[k], state, env)
        live = [k for k, c in enumerate(conditions) if c is not False]
        result = self.value(node.name, live[-1], node.args[live[-1]], state, env)
        for k in reversed(live[:-1]):
            other = self.value(node.name, k, node.args[k], state, env)
            result = self.machine.xp.where(conditions[k], other, result)
        return result

    def value(self, sink: str, k: int, ref: Ref, state: State, env: Mapping[str, Any]) -> Array:
        access = self.plan.accesses[sink, k]
        if access.how == "store":
            return self.read(self.plan.stores[ref.name], ref, state, env)
        return self.latest(ref.name, state)

    def latest(self, name: str, state: State) -> Array:
        """The variable of an equation; constants are made where they are used."""
        if name not in state.vals:
            if is_constant(self.graph, name):
                env = {**self.plan.sizes, **state.env}
                state.vals[name] = self.graph[name].op.run(self.machine.xp, env)
            else:  # the step before the first: a branch that is not taken
                state.vals[name] = self.blank(name)
        return state.vals[name]

    # ---- stores

    def slot(self, axis: Axis, at: Any) -> Any:
        return at - axis.lo if axis.kind == "block" else at % axis.slots

    def write(self, store: Store, value: Array, state: State, env: Mapping[str, Any]) -> None:
        starts = tuple(self.slot(a, env[a.dim]) for a in store.kept)
        state.stores[store.name] = self.machine.write(state.stores[store.name], starts, value)

    def read(self, store: Store, ref: Ref, state: State, env: Mapping[str, Any]) -> Array:
        """The value of a reference: points picked, slices as leading axes in the order of dims."""
        xp = self.machine.xp
        array = state.stores[store.name]
        dims = self.graph[store.name].domain.dims
        index = dict(zip(dims, ref.index, strict=True))
        starts: list[Any] = []
        sizes: list[int] = []
        rings: list[tuple[int, Slice, Axis]] = []
        for k, a in enumerate(store.kept):
            e = index[a.dim]
            if not isinstance(e, Slice):
                starts.append(self.slot(a, evaluate(e, env, xp)))
                sizes.append(1)
            elif a.kind == "block" and e.step == 1:
                starts.append(evaluate(e.lo, env, xp) - a.lo)
                sizes.append(evaluate(e.size, env))
            else:
                starts.append(0)
                sizes.append(a.slots)
                rings.append((k, e, a))
        shape = store.type.sizes(self.plan.sizes)
        if 0 in array.shape and 0 not in shape:  # no point of it exists: a branch never taken
            sizes = [
                evaluate(e.size, env) if isinstance(e := index[a.dim], Slice) else 1
                for a in store.kept
            ]
            box = xp.zeros((*sizes, *shape), dtype=array.dtype)
            return self.arrange(box, store, index, env)
        box = self.machine.read(array, (*starts, *(0,) * len(shape)), (*sizes, *shape))
        for k, e, a in rings:
            at = evaluate(e.lo, env, xp) + xp.arange(evaluate(e.size, env), dtype="int32") * e.step
            box = self.machine.gather(box, k, self.slot(a, at))
        return self.arrange(box, store, index, env)

    def arrange(
        self, box: Array, store: Store, index: Mapping[str, Any], env: Mapping[str, Any]
    ) -> Array:
        """Drops the axes of points, orders those of slices as the reference does, masks padding."""
        xp = self.machine.xp
        sliced = [a.dim for a in store.kept if isinstance(index[a.dim], Slice)]
        keep = [k for k, a in enumerate(store.kept) if isinstance(index[a.dim], Slice)]
        lead = len(store.kept)
        box = xp.reshape(box, (*(box.shape[k] for k in keep), *box.shape[lead:]))
        wanted = [d for d, e in index.items() if isinstance(e, Slice)]
        for d in wanted:
            if d not in sliced:  # a folded dim read as a range of one
                box = xp.expand_dims(box, axis=0)
                sliced.insert(0, d)
        if sliced != wanted:
            rest = tuple(range(len(wanted), len(box.shape)))
            box = xp.permute_dims(box, (*(sliced.index(d) for d in wanted), *rest))
        for k, d in enumerate(wanted):
            box = self.mask(box, k, index[d], env)
        return box

    def mask(self, box: Array, k: int, s: Slice, env: Mapping[str, Any]) -> Array:
        if s.pad is None:
            return box
        xp = self.machine.xp
        n = box.shape[k]
        count = evaluate(s.count, env, xp)
        if isinstance(count, int) and count >= n:
            return box
        valid = xp.reshape(
            xp.arange(n) < count, tuple(n if j == k else 1 for j in range(len(box.shape)))
        )
        return xp.where(valid, box, xp.zeros_like(box))


def neutral(op: Fold, dtype: str) -> Any:
    """The neutral element of a fold in its type."""
    return identity(op.monoid_of, dtype)
