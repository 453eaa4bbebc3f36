"""Launches that do not depend on each other run side by side, through a window.

    step = step_call((i, t), a_store)                     waits for what writes it, runs here
    (o_store, a_store) = act(seed, i, t, step, ..)        launched; its results are pending
    (d_W_so_far,) = learn(seed, i, t, .., o_store)        launched; acting need not wait for it

Every array of such a run is a handle. A variable is written once, by the launch that makes it; a
store is changed in place, at the places that `codegen.access_ranges` computes. Host calls stay in
the program's thread and order, and wait for their operands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from recurra.backends.protocol import ArrayFunction
from recurra.codegen.access_ranges import Spans, accessed_places, cut, places
from recurra.codegen.region import Region
from recurra.codegen.region_function import times
from recurra.cost.thresholds import WINDOW_SLOTS
from recurra.errors import Loc, RecurraError, here
from recurra.ir.array_protocols import LibraryArray
from recurra.ir.types import Tuple
from recurra.runtime.async_arrays import Handle, Handles, handles_in, read, value_of
from recurra.runtime.concurrency_policy import ConcurrencyTrial, RunLaunches, new_trial
from recurra.runtime.host_executor import Execution
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import StoredAxis
from recurra.window import Executor, Segment, Wrapper
from recurra.window.failures import failed

BLOCKING = ("numpy", "torch")  # backends with synchronous launches, which change stores in place


@dataclass(eq=False, slots=True)
class PendingLaunch:
    """A launch: its arguments and the handles of its results; if it runs at once, the results."""

    arguments: tuple[Any, ...]  # the seed, times, variables and stores, by position
    own: Segment
    makes: Sequence[Handle] = ()
    results: Sequence[LibraryArray] | None = None


@dataclass(frozen=True)
class WindowPlan:
    """The axes that cut the stores of a program, and the places that its regions touch."""

    axes: Mapping[str, tuple[StoredAxis, ...]]
    at: Mapping[str, Callable[[tuple[int, ...]], dict[str, tuple[Spans, Spans]]]]
    makes: Mapping[str, tuple[int, int]]  # the number of variables, and of addresses for them


@dataclass
class LaunchWindows:
    """The windows of a program's launches, over all of its runs, and what was learned of them."""

    execution: Execution
    known: dict[int, ConcurrencyTrial] = field(
        default_factory=dict[int, ConcurrencyTrial]
    )  # by threads

    @cached_property
    def plan(self) -> WindowPlan:
        """The accesses of the program's regions to stores."""
        return window_plan(self.execution)

    def judged(self, threads: int) -> ConcurrencyTrial:
        """Return the measurements of runs on so many threads."""
        return self.known.setdefault(threads, new_trial(threads))

    @contextmanager
    def launches(self, window: object) -> Generator[RunLaunches]:
        """The launches of one run: through a window of so many threads while that is faster.

        An executor of the caller's is always used.
        """
        if isinstance(window, bool) or not isinstance(window, int | Executor):
            raise RecurraError.at_user_line(
                f"a window cannot be {window!r}",
                facts="it is how many threads run launches, or an executor",
                hint="window=2, or window=recurra.window.Executor(threads=2, slots=16)",
            )
        if isinstance(window, Executor):
            try:
                yield self.through(window, "through an executor of the caller's")
            finally:  # it goes on, and nothing of this run may be in flight on it
                window.settle()
            return
        judged = self.judged(window)
        if judged.ends_before_comparison():
            with judged.continued():
                yield RunLaunches(_named(self.execution), judged)
            return
        # The queue is short, since each launch keeps its arguments alive.
        with (
            judged.continued() as stretch,
            Executor(window, WINDOW_SLOTS, queue=8, stretch=stretch, patient=True) as run,
        ):
            yield self.through(run, judged)
            run.settle()

    def through(self, run: Executor, how: ConcurrencyTrial | str) -> RunLaunches:
        """Return launches that go through an executor."""
        _expect(self.execution)
        return RunLaunches(windowed(self.execution, run, self.plan), how, run.spans)


def _named(execution: Execution) -> Execution:
    """Run launches in order, with the error messages of a window."""
    loc = here()

    def named(name: str, function: ArrayFunction) -> ArrayFunction:
        def call(*args: object) -> tuple[LibraryArray, ...]:
            try:
                return function(*args)
            except Exception as cause:
                raise failed(name, cause, loc) from cause

        return call

    return execution.using(launches=named)


def window_plan(execution: Execution) -> WindowPlan:
    """Compute the accesses of a program's regions to stores."""
    plan, regions = execution.program.plan, execution.program.regions
    axes = cut(plan, regions)
    at = {r.name: accessed_places(plan, r, axes) for r in regions}
    return WindowPlan(axes, at, {r.name: _makes(plan, r) for r in regions})


def _makes(plan: StoragePlan, region: Region) -> tuple[int, int]:
    types = [plan.statements.arrays[v].type for v in region.gives]
    count = len(types) + sum(region.polls for _ in region.ends)
    return count, count + sum(0 if isinstance(t, Tuple) else t.nbytes(plan.sizes) for t in types)


def _expect(execution: Execution) -> None:
    """Raise RecurraError if the launches cannot go through a window."""
    backend = execution.backend
    graphs = getattr(backend, "graphs", False) or getattr(backend, "device", "cpu") != "cpu"
    if execution.program.offload is not None:
        raise RecurraError.at_user_line(
            "a program that offloads cannot go through a window",
            facts="what is moved is moved in the order of its launches",
            hint="leave window out, or offload",
        )
    if execution.program.plan.arena is not None:
        raise RecurraError.at_user_line(
            "a program whose stores share one block cannot go through a window",
            facts="launches that need nothing of each other would write to the same bytes",
            hint="leave window out, or placement",
        )
    if execution.shards is not None or backend.name not in BLOCKING or graphs:
        raise RecurraError.at_user_line(
            "the launches of this program cannot go through a window",
            facts=f"it runs on {backend.name}"
            + (f" on {execution.shards.workers} workers" if execution.shards else "")
            + f"; there are windows for {' and '.join(BLOCKING)} on one CPU, whose launches block",
            hint="leave window out: other backends run ahead of the host by themselves",
        )


def windowed(execution: Execution, run: Executor, plan: WindowPlan | None = None) -> Execution:
    """Return the same program, its launches through `run`."""
    inside, plan, loc = Handles(execution.backend, run), plan or window_plan(execution), here()
    of = {r.name: r for r in execution.program.regions}
    return execution.using(
        launches=lambda name, _: _launching(execution, of[name], inside, plan, loc),
        calls=lambda name, call: _call(name, call, run),
        backend=inside.backend,
    )


def _launching(
    execution: Execution, region: Region, inside: Handles, plan: WindowPlan, loc: Loc | None
) -> ArrayFunction:
    """Return the region's function, which returns handles at once."""
    function, run, at = execution.regions[region.name], inside.run, plan.at[region.name]
    around = slice(1, 1 + len(region.around))
    middle = 1 + times(region) + len(region.held) + len(region.carried)
    names = (*region.stores, *region.reads)
    of = {s: middle + k for k, s in enumerate(names)}
    stores = slice(middle, middle + len(region.stores))
    counts = {s: places(plan.axes[s]) for s in names}
    count, size = plan.makes[region.name]

    def body(launched: PendingLaunch) -> None:
        results = function(*map(value_of, launched.arguments))
        pairs = zip(launched.arguments[stores], results[count:], strict=True)
        assert all(x is s.value for s, x in pairs), f"{region.name} gave another store"
        launched.results = results[:count]
        for handle, x in zip(launched.makes, results, strict=False):
            handle.value = x

    def pieces(launched: PendingLaunch, writes: bool) -> list[Segment]:
        found: list[Segment] = []
        for name, spans in at(launched.arguments[around]).items():
            s = launched.arguments[of[name]].segment
            found += _pieces(s.start, s.size // counts[name], spans[writes])
        return found

    def reads(launched: PendingLaunch) -> list[Segment]:
        found = (h.segment for x in launched.arguments[:middle] for h in handles_in(x))
        taken = {id(segment): segment for segment in found}
        return [*taken.values(), *pieces(launched, writes=False)]

    def writes(launched: PendingLaunch) -> list[Segment]:
        return [launched.own, *pieces(launched, writes=True)]

    wrapper = Wrapper(region.name, body, reads, writes, kind=region.name, loc=loc)

    def launch(*args: Any) -> tuple[LibraryArray, ...]:
        if run.runs_in_order:
            launched = PendingLaunch(args, inside.ready)
            run.launch(wrapper, launched)
            if launched.results is None:  # it failed, or another thread turned the window on
                run.wait(inside.ready)
            assert launched.results is not None
            return (*launched.results, *args[stores])
        own = inside.fresh(size)
        makes = [Handle(run, own, once=True) for _ in range(count)]
        run.launch(wrapper, PendingLaunch(args, own, makes))
        return (*makes, *args[stores])

    return launch


@lru_cache(maxsize=4096)
def _pieces(start: int, unit: int, spans: Spans) -> tuple[Segment, ...]:
    """Convert places of a store to segments of addresses."""
    return tuple(Segment(start + lo * unit, (hi - lo) * unit) for lo, hi in spans)


def _call(name: str, call: ArrayFunction, run: Executor) -> ArrayFunction:
    """Return a host call that waits for its operands, and is recorded beside the launches."""

    def waits(at: tuple[int, ...], *args: object) -> tuple[LibraryArray, ...]:
        wanted = [h.segment for x in args for h in handles_in(x)]
        run.wait(*wanted)
        operands = [read(x) for x in args]
        since = time.perf_counter()
        results = call(at, *operands)
        run.called(name, since, *wanted)
        return results

    return waits
