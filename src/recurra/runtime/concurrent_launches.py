"""Launches that do not need each other run side by side, through a window.

    step = step_call((i, t), a_store)                     waits for what writes it, runs here
    (o_store, a_store) = act(seed, i, t, step, ..)        launched; what it makes comes later
    (d_W_so_far,) = learn(seed, i, t, .., o_store)        launched; acting need not wait for it

Every array of such a run is a handle. A variable is written once, by the launch that makes it; a
store is changed in place, at the places that `program.touched` tells. The host's calls stay in the
program's thread and order, and wait for what they are given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from recurra.backends.protocol import ArrayFunction
from recurra.codegen.access_ranges import Spans, cut, places, touched
from recurra.codegen.region import Region
from recurra.codegen.region_function import times
from recurra.cost.thresholds import WINDOW_SLOTS
from recurra.errors import Loc, RecurraError, here
from recurra.ir.arrays import LibraryArray
from recurra.ir.types import Tuple
from recurra.runtime.async_arrays import Handle, Handles, among, read, there
from recurra.runtime.concurrency_policy import Judged, RunLaunches, judged_on
from recurra.runtime.executor import Execution
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import StoredAxis
from recurra.window import Executor, Segment, Wrapper
from recurra.window.failures import failed

BLOCKING = ("numpy", "torch")  # backends whose launches end when they return, and change in place


@dataclass(eq=False, slots=True)
class Launched:
    """A launch: what it is given, and where its results go; if it runs at once, they stay here."""

    given: tuple[Any, ...]  # the seed, times, variables and stores, by their places
    own: Segment
    makes: Sequence[Handle] = ()
    made: Sequence[LibraryArray] | None = None


@dataclass(frozen=True)
class Told:
    """The stores of a program, how they are cut, and what regions access at given times."""

    axes: Mapping[str, tuple[StoredAxis, ...]]
    at: Mapping[str, Callable[[tuple[int, ...]], dict[str, tuple[Spans, Spans]]]]
    makes: Mapping[str, tuple[int, int]]  # how many variables, and addresses for them


@dataclass
class LaunchWindows:
    """The windows that a program's launches go through, run after run, and what is known for it."""

    execution: Execution
    known: dict[int, Judged] = field(default_factory=dict[int, Judged])  # by threads

    @cached_property
    def told(self) -> Told:
        """The facts about the program that its launches need to go through a window."""
        return window_plan(self.execution)

    def judged(self, threads: int) -> Judged:
        """Return what its runs on so many threads have shown."""
        return self.known.setdefault(threads, judged_on(threads))

    @contextmanager
    def launches(self, window: object) -> Generator[RunLaunches]:
        """The launches of one run: by so many threads while that pays, or by an executor of the
        caller's."""
        if isinstance(window, bool) or not isinstance(window, int | Executor):
            raise RecurraError(
                f"a window cannot be {window!r}",
                facts="it is how many threads run launches, or an executor",
                hint="window=2, or window=recurra.window.Executor(threads=2, slots=16)",
                loc=here(),
            )
        if isinstance(window, Executor):
            with settled(window):
                yield self.through(window, "through an executor of the caller's")
            return
        judged = self.judged(window)
        if judged.rests():
            with judged.going_on():
                yield RunLaunches(_named(self.execution), judged)
            return
        # Few wait in line, since each holds what it is given.
        with (
            judged.going_on() as stretch,
            Executor(window, WINDOW_SLOTS, queue=8, stretch=stretch, patient=True) as run,
        ):
            yield self.through(run, judged)
            run.settle()

    def through(self, run: Executor, how: Judged | str) -> RunLaunches:
        """Return launches that go through an executor."""
        _expect(self.execution)
        return RunLaunches(windowed(self.execution, run, self.told), how, run.spans)


def _named(execution: Execution) -> Execution:
    """Launches in order; a failure names the region, as in a window."""
    loc = here()

    def named(name: str, function: ArrayFunction) -> ArrayFunction:
        def call(*given: object) -> tuple[LibraryArray, ...]:
            try:
                return function(*given)
            except Exception as cause:
                raise failed(name, cause, loc) from cause

        return call

    return execution.using(launches=named)


def window_plan(execution: Execution) -> Told:
    """Find the facts about a program that its launches need to go through a window."""
    plan, regions = execution.program.plan, execution.program.regions
    axes = cut(plan, regions)
    at = {r.name: touched(plan, r, axes) for r in regions}
    return Told(axes, at, {r.name: _makes(plan, r) for r in regions})


def _makes(plan: StoragePlan, region: Region) -> tuple[int, int]:
    types = [plan.statements.arrays[v].type for v in region.gives]
    count = len(types) + sum(region.asks for _ in region.ends)
    return count, count + sum(0 if isinstance(t, Tuple) else t.nbytes(plan.sizes) for t in types)


@contextmanager
def settled(run: Executor) -> Generator[None]:
    """An executor that goes on afterwards: nothing of the block is in flight then."""
    try:
        yield
    finally:
        run.settle()


def _expect(execution: Execution) -> None:
    """Raises RecurraError where the launches cannot go through a window."""
    backend = execution.backend
    graphs = getattr(backend, "graphs", False) or getattr(backend, "device", "cpu") != "cpu"
    if execution.program.offload is not None:
        raise RecurraError(
            "a program that offloads cannot go through a window",
            facts="what is moved is moved in the order of its launches",
            hint="leave window out, or offload",
            loc=here(),
        )
    if execution.program.plan.arena is not None:
        raise RecurraError(
            "a program whose stores share one block cannot go through a window",
            facts="launches that need nothing of each other would write to the same bytes",
            hint="leave window out, or placement",
            loc=here(),
        )
    if execution.shards is not None or backend.name not in BLOCKING or graphs:
        raise RecurraError(
            "the launches of this program cannot go through a window",
            facts=f"it runs on {backend.name}"
            + (f" on {execution.shards.workers} workers" if execution.shards else "")
            + f"; there are windows for {' and '.join(BLOCKING)} on one CPU, whose launches block",
            hint="leave window out: other backends run ahead of the host by themselves",
            loc=here(),
        )


def windowed(execution: Execution, run: Executor, known: Told | None = None) -> Execution:
    """The same program, its launches through `run`."""
    inside, known, loc = Handles(execution.backend, run), known or window_plan(execution), here()
    of = {r.name: r for r in execution.program.regions}
    return execution.using(
        launches=lambda name, _: _launching(execution, of[name], inside, known, loc),
        calls=lambda name, call: _call(name, call, run),
        backend=inside.backend,
    )


def _launching(
    execution: Execution, region: Region, inside: Handles, known: Told, loc: Loc | None
) -> ArrayFunction:
    """f as the region's own function, which gives handles at once."""
    function, run, at = execution.regions[region.name], inside.run, known.at[region.name]
    middle, around = (
        1 + times(region) + len(region.held) + len(region.carried),
        slice(1, 1 + len(region.around)),
    )
    names = (*region.stores, *region.reads)
    of = {s: middle + k for k, s in enumerate(names)}
    stores = slice(middle, middle + len(region.stores))
    counts = {s: places(known.axes[s]) for s in names}
    count, size = known.makes[region.name]

    def body(launched: Launched) -> None:
        results = function(*map(there, launched.given))
        same = all(
            x is s.value for s, x in zip(launched.given[stores], results[count:], strict=True)
        )
        assert same, f"{region.name} gave another store than it was given"
        launched.made = results[:count]
        for handle, x in zip(launched.makes, results, strict=False):
            handle.value = x

    def pieces(launched: Launched, writes: bool) -> list[Segment]:
        found: list[Segment] = []
        for name, spans in at(launched.given[around]).items():
            s = launched.given[of[name]].segment
            found += _pieces(s.start, s.size // counts[name], spans[writes])
        return found

    def reads(launched: Launched) -> list[Segment]:
        taken = {id(h.segment): h.segment for x in launched.given[:middle] for h in among(x)}
        return [*taken.values(), *pieces(launched, writes=False)]

    def writes(launched: Launched) -> list[Segment]:
        return [launched.own, *pieces(launched, writes=True)]

    wrapper = Wrapper(region.name, body, reads, writes, kind=region.name, loc=loc)

    def launch(*given: Any) -> tuple[LibraryArray, ...]:
        if run.straight:
            launched = Launched(given, inside.there)
            run.launch(wrapper, launched)
            if launched.made is None:  # it has failed, or another thread has turned the window on
                run.wait(inside.there)
            assert launched.made is not None
            return (*launched.made, *given[stores])
        own = inside.fresh(size)
        makes = [Handle(run, own, once=True) for _ in range(count)]
        run.launch(wrapper, Launched(given, own, makes))
        return (*makes, *given[stores])

    return launch


@lru_cache(maxsize=4096)
def _pieces(start: int, unit: int, spans: Spans) -> tuple[Segment, ...]:
    """Places of a store as addresses."""
    return tuple(Segment(start + lo * unit, (hi - lo) * unit) for lo, hi in spans)


def _call(name: str, call: ArrayFunction, run: Executor) -> ArrayFunction:
    """A host call, which waits for what it is given, and is seen beside the launches."""

    def waits(at: tuple[int, ...], *given: object) -> tuple[LibraryArray, ...]:
        wanted = [h.segment for x in given for h in among(x)]
        run.wait(*wanted)
        operands = [read(x) for x in given]
        since = time.perf_counter()
        made = call(at, *operands)
        run.called(name, since, *wanted)
        return made

    return waits
