"""windowed: a program's launches go through a window, so that independent ones run side by side.

    step = step_call((i, t), a_store)                     waits for what writes it, runs here
    (o_store, a_store) = act(seed, i, t, step, ..)        launched; what it makes comes later
    (d_W_so_far,) = learn(seed, i, t, .., o_store)        launched; acting need not wait for it

Every array of such a run is a handle. A variable is written once, by the launch that makes it; a
store is changed in place, at the places that `program.touched` tells. The host's calls stay in the
program's thread and order, and wait for what they are given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from recurra.errors import RecurraError, here
from recurra.handles import Handle, Handles, among, read, there
from recurra.ir.types import Tuple
from recurra.program.execute import Execution
from recurra.program.function import times
from recurra.program.region import Region
from recurra.program.touched import Spans, cut, places, touched
from recurra.schedule.tree import equation
from recurra.window import Executor, Segment, Wrapper

if TYPE_CHECKING:
    from recurra.executable import Executable

BLOCKING = ("numpy", "torch")  # backends whose launches end when they return, and change in place


@dataclass(eq=False)
class Launched:
    """A launch: what it is given, what it touches, where its results go."""

    given: Sequence[Any]
    makes: Sequence[Handle]
    reads: list[Segment]
    writes: list[Segment]


def through(program: Executable, window: Any, seed: int, **options: Any) -> dict[str, Any]:
    """`program.run`, by so many threads, or by an executor of the caller's."""
    if program.check:
        raise RecurraError(
            "check='nan' looks at one launch after the other",
            facts="the program is run through a window",
            hint="leave window out to find out where a NaN comes from",
            loc=here(),
        )
    if isinstance(window, bool) or not isinstance(window, int | Executor):
        raise RecurraError(
            f"a window cannot be {window!r}",
            facts="it is how many threads run launches, or an executor",
            hint="window=2, or window=recurra.window.Executor(threads=2, slots=16)",
            loc=here(),
        )
    # What the host's own calls take is unknown to the executor: it cannot predict a gain. Few wait
    # in line, since each holds what it is given.
    run = window if isinstance(window, Executor) else Executor(window, queue=8, policy="always")
    made = copy(program)
    made.__dict__["execution"] = windowed(program.execution, run)
    made.launched = run.spans
    with settled(run) if run is window else run:
        return made.run(seed, **options)


@contextmanager
def settled(run: Executor) -> Generator[None]:
    """An executor that goes on afterwards: nothing of the block is in flight then."""
    try:
        yield
    finally:
        run.settle()


def windowed(execution: Execution, run: Executor) -> Execution:
    """The same program, its launches through `run`. Raises RecurraError where they cannot be."""
    backend: Any = execution.backend
    graphs = getattr(backend, "graphs", False) or getattr(backend, "device", "cpu") != "cpu"
    if execution.program.swap is not None:
        raise RecurraError(
            "a program that swaps cannot go through a window",
            facts="what is moved is moved in the order of its launches",
            hint="leave window out, or swap",
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
    made, inside = copy(execution), Handles(backend, run)
    made.backend = cast(Any, inside)
    axes = cut(execution.program.plan, execution.program.regions)
    made.regions = {
        r.name: _launching(execution, r, inside, axes) for r in execution.program.regions
    }
    made.around = lambda name, call: _call(name, call, run)
    return made


def _launching(execution: Execution, r: Region, inside: Handles, axes: Any) -> Callable[..., Any]:
    """f as the region's own function, which gives handles at once."""
    plan, function, run = execution.program.plan, execution.regions[r.name], inside.run
    at, ints = touched(plan, r, axes), 1 + times(r)
    middle = ints + len(r.held) + len(r.carried)
    names = (*r.stores, *r.reads)
    types = [plan.graph[equation(v)].type for v in r.gives]
    count = len(types) + sum(r.asks for _ in r.ends)  # of results that are variables, in one piece
    size = count + sum(0 if isinstance(t, Tuple) else t.nbytes(plan.sizes) for t in types)

    def body(made: Launched) -> None:
        results = function(*map(there, made.given))
        for handle, x in zip(made.makes, results[: len(made.makes)], strict=True):
            handle.value = x
        for s, x in zip(r.stores, results[len(made.makes) :], strict=True):
            given = made.given[middle + names.index(s)].value
            assert x is given, f"{r.name} gave another store {s} than it was given"

    wrapper = Wrapper(r.name, body, lambda made: made.reads, lambda made: made.writes)

    def launch(*given: Any) -> tuple[Any, ...]:
        stores, own = dict(zip(names, given[middle:], strict=True)), inside.fresh(size)
        taken = dict.fromkeys(h.segment for x in given[:middle] for h in among(x))
        made = Launched(given, [Handle(run, own) for _ in range(count)], [*taken], [own])
        for name, (reads, writes) in at(given[1 : 1 + len(r.around)]).items():
            made.reads += _pieces(stores[name], reads, places(axes[name]))
            made.writes += _pieces(stores[name], writes, places(axes[name]))
        run.launch(wrapper, made)
        return (*made.makes, *(stores[s] for s in r.stores))

    return launch


def _pieces(store: Handle, spans: Spans, count: int) -> list[Segment]:
    """Places of a store as addresses."""
    start, unit = store.segment.start, store.segment.size // count
    return [Segment(start + lo * unit, (hi - lo) * unit) for lo, hi in spans]


def _call(name: str, call: Callable[..., Any], run: Executor) -> Callable[..., Any]:
    """A host call, which waits for what it is given, and is seen beside the launches."""

    def waits(at: tuple[int, ...], *given: Any) -> Any:
        operands = [read(x) for x in given]
        since = time.perf_counter()
        made = call(at, *operands)
        run.ran(name, since)
        return made

    return waits
