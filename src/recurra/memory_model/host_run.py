"""The host part of a program on arrays without numbers: what is alive, from the first line on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, overload

from recurra.codegen.host_program import Program
from recurra.codegen.host_source import host_source
from recurra.codegen.loop_segments import few
from recurra.codegen.streamed_outputs import streamed
from recurra.ir.expr import TRUE, evaluate
from recurra.ir.types import Tuple
from recurra.memory_model.amount import Extent, extents, most, number
from recurra.memory_model.arena import within
from recurra.memory_model.arrays import ArrayView, Shape, allocated
from recurra.memory_model.machine import (
    Besides,
    Compiled,
    Made,
    MeteredLaunches,
    ShapeMachine,
    Shapes,
    copied,
    fresh,
    store,
)
from recurra.memory_model.peak import Held, Peak
from recurra.memory_model.peak_meter import Meter
from recurra.polyhedral.extent import varies
from recurra.storage.allocation import ALIGNMENT
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store, StoredAxis

Buffers = ArrayView | list[ArrayView]
"""A store; its buffers, where it has one for each of some points"""
Variables = TypeVar("Variables")
Steps = Callable[[int, int], Sequence[int]]


def footprint(
    program: Program,
    backend: Besides | None = None,
    steps: Steps = few,
) -> Peak:
    """The most that a program holds at once, and what that is.

    With a `backend`, regions are launches, and what is counted is what it holds: results that are
    copied from it are not. Without, every statement allocates what it does on NumPy. `steps` are
    run of every loop.
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
    meter.look()
    return _peak_of(program, meter)


def measured(plan: StoragePlan) -> StoragePlan:
    """The plan with lengths that know how they are made of the bounds."""
    bounds = extents(plan.sizes)
    stores = {
        n: replace(s, axes=tuple(_axis(plan, s, a, bounds) for a in s.axes))
        for n, s in plan.stores.items()
    }
    return replace(plan, sizes=bounds, stores=stores)


def _axis(
    plan: StoragePlan, store: Store, axis: StoredAxis, bounds: Mapping[str, int]
) -> StoredAxis:
    """The axis for other bounds: a block grows with its dim, windows keep their length."""
    r = plan.graph[store.name].domain[axis.dim]
    if axis.kind not in ("block", "tiled", "apart", "strided") or varies(r, plan.sizes):
        return axis
    points = evaluate(r.hi, bounds) - evaluate(r.lo, bounds)
    if axis.kind == "tiled":
        points = -(-points // axis.tile) * axis.tile
    if axis.kind == "strided":
        points = -(-points // axis.step)
    slots = points + (axis.slots - int(points))
    return replace(axis, slots=slots if isinstance(slots, Extent) else axis.slots)


class Few(list[ArrayView]):
    """An offloaded store: as many buffers as are in memory at once, of any of its points."""

    def __getitem__(self, point: int) -> ArrayView:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().__getitem__(point % len(self))

    def __setitem__(self, point: int, array: ArrayView) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().__setitem__(point % len(self), array)

    taken = blank = __getitem__


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
        made = self.launched or Shapes(self.meter, ShapeMachine(self.meter, self.steps))
        self.compiled = {r.name: made.compile(self.plan, r) for r in self.program.regions}

    def all(self, main: Callable[..., Iterator[object]]) -> None:
        """The run, to its results."""
        seed = allocated(self.meter, (), "uint32")
        stores, held = _returned(main(self, seed, copied))
        self.results(stores)
        del held

    def results(self, stores: Mapping[str, Buffers]) -> None:
        """Outputs that came in pieces, beside these; others are their stores."""
        if self.launched is not None:
            return
        self.meter.at = "results"
        out: dict[str, Buffers] = {}
        for name in self.plan.graph.outputs:
            pieces, kept = self.pieces.get(name), self.plan.stores[name]
            alone = pieces is None or self.reports[name] == 1
            array = stores[name] if pieces is None else pieces
            out[name] = array if alone and not kept.given else _output(self.meter, name, array)

    # ---- what is there at the start

    def stores(self, *names: str) -> tuple[Buffers, ...]:
        self.meter.at = "the arena"
        views = within(self.meter, self.plan, 0 if self.launched else ALIGNMENT)
        found = [self.plan.stores[n] for n in names]
        return tuple(views[s.name] if s.name in views else self.store(s) for s in found)

    def store(self, s: Store) -> Buffers:
        """Zeros, or what is given: the copy of an input that cannot be read where it lies."""
        buffer = partial(store, self.meter, self.plan, s)
        if s.room:
            return Few([buffer() for _ in range(s.room)])
        return buffer() if s.apart is None else [buffer() for _ in range(s.apart.slots)]

    def variables(self, *names: str) -> tuple[Made | None, ...]:
        return tuple(self.blank(n) for n in names)

    def blank(self, name: str) -> Made | None:
        (writer, *_) = self.plan.statements.writers[name]
        made_first = isinstance(writer.type, Tuple) and writer.where == TRUE  # by a call
        return None if made_first else fresh(self.meter, self.plan, name)

    neutral = blank

    def regions(self, *names: str) -> tuple[Compiled, ...]:
        return tuple(self.compiled[n] for n in names)

    def calls(self, *names: str) -> tuple[Callable[..., Made], ...]:
        """Stand-ins for host functions; the memory that these hold themselves is not counted."""

        def call(name: str) -> Callable[..., Made]:
            return lambda times, *given: fresh(self.meter, self.plan, name)

        return tuple(map(call, names))

    # ---- loops

    def enter(self, lo: int, variables: Mapping[str, Made]) -> tuple[int, tuple[Made, ...]]:
        return lo, tuple(variables.values())

    def later(self, lo: int) -> int:
        return lo

    def launches(self, lo: int, hi: int, size: int) -> list[tuple[int, int]]:
        """A few of the host's launches, cut as the host cuts them."""
        cuts = [lo, *range(lo - lo % size + size, hi, size), hi]
        return [(cuts[k], cuts[k + 1]) for k in self.steps(0, len(cuts) - 1)]

    def end(self, going: object, end: int, after: int) -> int:
        return end

    def ended(self, end: int) -> int:
        return int(end)

    def rest(self, values: Mapping[str, Made], end: int) -> None:
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
        """Outputs that leave with every launch are kept, as far as they have come."""
        self.meter.at = f"the outputs of {dim}={lo}"
        for name in outputs.keys() & self.streamed.keys() if self.launched is None else ():
            self.pieces[name] = self.piece(name, outputs[name], lo, hi)
            self.reports[name] = self.reports.get(name, 0) + 1
        return variables

    def piece(self, name: str, array: ArrayView, lo: int, hi: int) -> ArrayView:
        """The points of an output up to a time of its loop; of a part, all is copied to cut it."""
        axis, s = self.streamed[name], self.plan.stores[name]
        self.pieces.pop(name, None)
        loop = next(x for _, x in self.plan.schedule.paths()[name] if x is not None)
        r = self.plan.graph[name].domain[s.kept[axis].dim]
        points = evaluate(r.hi, self.plan.sizes) - evaluate(r.lo, self.plan.sizes)
        done = (
            hi - loop.shift[name] - (int(evaluate(r.lo, self.plan.sizes)) if loop.step > 0 else 0)
        )
        count = points if done >= points else max(0, done)
        shape = tuple(count if k == axis else n for k, n in enumerate(array.shape))
        whole = array.copy() if hi - lo != array.shape[axis] or lo % (hi - lo) else None
        kept = _output(self.meter, name, array, shape)
        del whole
        return kept


def _returned(steps: Iterator[object]) -> tuple[Any, object]:
    """Run a generator to its end; return its result, and what it gave last, which is still held."""
    held: object = None
    while True:
        try:
            held = next(steps)
        except StopIteration as end:
            return end.value, held


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
    sizes = {name: int(n) for name, n in program.plan.sizes.items()}
    tops = most(meter.tops)
    order = sorted(held.values(), key=lambda h: -h.nbytes)
    arena = program.plan.arena
    return Peak(
        meter.peak.nbytes,
        meter.peak.at,
        tuple(order),
        tops,
        sizes,
        tuple(meter.history),
        arena.total if arena else "",
        meter.asked,
    )
