"""Run the host code of a program on arrays without numbers, to measure its peak of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, overload

from recurra.codegen.host_program import Program
from recurra.codegen.host_source import host_source
from recurra.codegen.loop_segments import sample_steps
from recurra.codegen.streamed_outputs import streamed
from recurra.ir.expr import TRUE, evaluate
from recurra.ir.types import Tuple
from recurra.memory_model.amount import Extent, extents, maximal, number
from recurra.memory_model.arena import within
from recurra.memory_model.arrays import ArrayView, Shape, allocated
from recurra.memory_model.metered_regions import (
    ArrayTree,
    Compiled,
    LaunchMemory,
    MeteredLaunches,
    ShapeMachine,
    StatementRegions,
    allocate_store,
    copied,
    fresh,
)
from recurra.memory_model.peak import Held, Peak
from recurra.memory_model.peak_meter import Meter
from recurra.polyhedral.extent import varies
from recurra.storage.arena_offsets import ALIGNMENT
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store, StoredAxis

Buffers = ArrayView | list[ArrayView]
"""The buffer of a store, or its buffers if it has one for each point"""
Variables = TypeVar("Variables")
Steps = Callable[[int, int], Sequence[int]]


def footprint(
    program: Program,
    backend: LaunchMemory | None = None,
    steps: Steps = sample_steps,
) -> Peak:
    """Return the peak of a program.

    Args:
        backend: its launches are counted, not the results copied from it; without a backend, every
            statement allocates as on NumPy.
        steps: the iterations to run of a loop, given its ends.
    """
    plan, program = program.plan, replace(program, plan=measured(program.plan))
    meter = Meter()
    regions = None if backend is None else MeteredLaunches(meter, backend, plan)
    main = program.main
    meter.state = frozenset(program.traveling(main) if main is not None else ())
    run = _HostRun(program, meter, regions, steps)
    scope: dict[str, Any] = {"range": steps}
    exec(compile(host_source(program), "<recurra program>", "exec"), scope)
    run.all(scope["main"])
    meter.update_peak()
    return _peak_of(program, meter)


def measured(plan: StoragePlan) -> StoragePlan:
    """The plan with symbolic lengths: integers with their amounts in terms of the bounds."""
    bounds = extents(plan.sizes)
    stores = {
        n: replace(s, axes=tuple(_axis(plan, s, a, bounds) for a in s.axes))
        for n, s in plan.stores.items()
    }
    return replace(plan, sizes=bounds, stores=stores)


def _axis(
    plan: StoragePlan, store: Store, axis: StoredAxis, bounds: Mapping[str, int]
) -> StoredAxis:
    """The axis with symbolic slots: a full store grows with its dim, others keep their length."""
    r = plan.graph[store.name].domain[axis.dim]
    if axis.kind not in ("full", "tiled", "per_point", "strided") or varies(r, plan.sizes):
        return axis
    points = evaluate(r.hi, bounds) - evaluate(r.lo, bounds)
    if axis.kind == "tiled":
        points = -(-points // axis.tile) * axis.tile
    if axis.kind == "strided":
        points = -(-points // axis.step)
    slots = points + (axis.slots - int(points))
    return replace(axis, slots=slots if isinstance(slots, Extent) else axis.slots)


class ResidentBuffers(list[ArrayView]):
    """The buffers of an offloaded store that are in memory at once, for any of its points."""

    def __getitem__(self, point: int) -> ArrayView:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().__getitem__(point % len(self))

    def __setitem__(self, point: int, array: ArrayView) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().__setitem__(point % len(self), array)

    writable = empty = __getitem__


@dataclass
class _HostRun:
    """The functions that the generated host code calls."""

    program: Program
    meter: Meter
    launched: MeteredLaunches | None
    steps: Steps
    pieces: dict[str, ArrayView] = field(default_factory=dict[str, ArrayView])
    reports: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.plan = self.program.plan
        self.streamed = streamed(self.program)
        machine = self.launched or StatementRegions(
            self.meter, ShapeMachine(self.meter, self.steps)
        )
        self.compiled = {r.name: machine.compile(self.plan, r) for r in self.program.regions}

    def all(self, main: Callable[..., Iterator[object]]) -> None:
        """Run the host code, then build the results."""
        seed = allocated(self.meter, (), "uint32")
        stores, held = _result(main(self, seed, copied))
        self.results(stores)
        del held

    def results(self, stores: Mapping[str, Buffers]) -> None:
        """Allocate the outputs: joined from pieces, while these are alive, or their stores."""
        if self.launched is not None:
            return
        self.meter.at = "results"
        out: dict[str, Buffers] = {}
        for name in self.plan.graph.outputs:
            pieces, store = self.pieces.get(name), self.plan.stores[name]
            single = pieces is None or self.reports[name] == 1
            array = stores[name] if pieces is None else pieces
            out[name] = array if single and not store.given else _output(self.meter, name, array)

    # ---- before the first loop

    def stores(self, *names: str) -> tuple[Buffers, ...]:
        self.meter.at = "the arena"
        views = within(self.meter, self.plan, 0 if self.launched else ALIGNMENT)
        return tuple(views[n] if n in views else self.store(self.plan.stores[n]) for n in names)

    def store(self, s: Store) -> Buffers:
        """Zeros, or the copy of an input."""
        buffer = partial(allocate_store, self.meter, self.plan, s)
        if s.room:
            return ResidentBuffers([buffer() for _ in range(s.room)])
        return buffer() if s.per_point is None else [buffer() for _ in range(s.per_point.slots)]

    def variables(self, *names: str) -> tuple[ArrayTree | None, ...]:
        return tuple(self.blank(n) for n in names)

    def blank(self, name: str) -> ArrayTree | None:
        (writer, *_) = self.plan.statements.writers[name]
        from_call = isinstance(writer.type, Tuple) and writer.where == TRUE
        return None if from_call else fresh(self.meter, self.plan, name)

    neutral = blank

    def regions(self, *names: str) -> tuple[Compiled, ...]:
        return tuple(self.compiled[n] for n in names)

    def calls(self, *names: str) -> tuple[Callable[..., ArrayTree], ...]:
        """Stand-ins for host functions; the memory inside of these is not counted."""

        def call(name: str) -> Callable[..., ArrayTree]:
            return lambda times, *args: fresh(self.meter, self.plan, name)

        return tuple(map(call, names))

    # ---- loops

    def enter(
        self, lo: int, variables: Mapping[str, ArrayTree]
    ) -> tuple[int, tuple[ArrayTree, ...]]:
        return lo, tuple(variables.values())

    def later(self, lo: int) -> int:
        return lo

    def launches(self, lo: int, hi: int, size: int) -> list[tuple[int, int]]:
        """A few of the host's launches, with the host's borders."""
        cuts = [lo, *range(lo - lo % size + size, hi, size), hi]
        return [(cuts[k], cuts[k + 1]) for k in self.steps(0, len(cuts) - 1)]

    def end(self, going: object, end: int, after: int) -> int:
        return end

    def ended(self, end: int) -> int:
        return int(end)

    def rest(self, values: Mapping[str, ArrayTree], end: int) -> None:
        pass

    def report(
        self,
        dim: str,
        lo: int,
        hi: int,
        outputs: Mapping[str, ArrayView],
        variables: Variables,
        end: object = None,
    ) -> Variables:
        """Keep the points so far of outputs that leave with every launch."""
        self.meter.at = f"the outputs of {dim}={lo}"
        for name in outputs.keys() & self.streamed.keys() if self.launched is None else ():
            self.pieces[name] = self.piece(name, outputs[name], lo, hi)
            self.reports[name] = self.reports.get(name, 0) + 1
        return variables

    def piece(self, name: str, array: ArrayView, lo: int, hi: int) -> ArrayView:
        """The points of an output up to a time of its loop; a part is cut from a copy of all."""
        axis, s = self.streamed[name], self.plan.stores[name]
        self.pieces.pop(name, None)
        loop = next(x for _, x in self.plan.schedule.paths()[name] if x is not None)
        r = self.plan.graph[name].domain[s.kept[axis].dim]
        first = evaluate(r.lo, self.plan.sizes)
        points = evaluate(r.hi, self.plan.sizes) - first
        done = hi - loop.shift[name] - (int(first) if loop.step > 0 else 0)
        count = points if done >= points else max(0, done)
        shape = tuple(count if k == axis else n for k, n in enumerate(array.shape))
        whole = array.copy() if hi - lo != array.shape[axis] or lo % (hi - lo) else None
        kept = _output(self.meter, name, array, shape)
        del whole
        return kept


def _result(steps: Iterator[object]) -> tuple[Any, object]:
    """Run a generator to its end; return its result and its last value, which is still alive."""
    last: object = None
    while True:
        try:
            last = next(steps)
        except StopIteration as end:
            return end.value, last


@overload
def _output(meter: Meter, name: str, array: ArrayView, shape: Shape | None = None) -> ArrayView: ...
@overload
def _output(meter: Meter, name: str, array: Buffers) -> Buffers: ...
def _output(meter: Meter, name: str, array: Buffers, shape: Shape | None = None) -> Buffers:
    if isinstance(array, list):
        return [_output(meter, name, x) for x in array]
    shape = array.shape if shape is None else shape
    return allocated(meter, shape, array.dtype, kind="output", name=name)


def _peak_of(program: Program, meter: Meter) -> Peak:
    held: dict[tuple[str, str], Held] = {}
    for x in meter.peak.labels:
        key = (x.name or f"inside of {meter.peak.at.partition(' of ')[0]}", meter.kind(x))
        old = held.get(key, Held(*key, 0, number(0), 0))
        held[key] = Held(*key, old.nbytes + x.nbytes, old.amount + x.amount, old.buffers + 1)
    arena = program.plan.arena
    return Peak(
        meter.peak.nbytes,
        meter.peak.at,
        held=tuple(sorted(held.values(), key=lambda h: -h.nbytes)),
        amounts=maximal(meter.peak_candidates),
        sizes={name: int(n) for name, n in program.plan.sizes.items()},
        history=tuple(meter.history),
        arena=arena.total if arena else "",
        fixed=meter.fixed,
    )
