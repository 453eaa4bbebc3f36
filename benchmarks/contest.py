"""Contest: the two forms of a workload, which must agree before a time is taken."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.harness import Contestant, progress
from benchmarks.workload import Workload, as_numpy, on_backend, waited
from recurra.errors import RecurraError
from recurra.runtime.executable import Executable

Made = TypeVar("Made")


@dataclass(frozen=True)
class Contest:
    """Our program and the form by hand, on arrays of one library, and what both cost to make."""

    program: Executable
    given: Mapping[str, Any]
    ours: Contestant
    theirs: Contestant
    compile_s: float
    compile_by_hand_s: float


def contest(
    workload: Workload, sizes: Mapping[str, int], backend: str = "jax", native: bool = True
) -> Contest:
    """Both forms, compiled and run once.

    With `native`, they take and return arrays of the backend, else NumPy's. The seconds are those
    of the process on all cores, until the first results are there.
    """
    arrays = workload.inputs(sizes)
    given = on_backend(backend, arrays) if native else arrays

    def ours() -> Callable[[], Any]:
        made = workload.program(backend, sizes)
        programs.append(made)
        return lambda: made.run(inputs=given, native=native)

    def theirs() -> Callable[[], Any]:
        function = workload.by_hand(backend, sizes)
        return lambda: (waited if native else as_numpy)(function(**given))

    programs: list[Executable] = []
    run, compile_s = started(lambda: repeatable(ours()))
    by_hand, compile_by_hand_s = started(lambda: repeatable(theirs()))
    return Contest(
        programs[0],
        given,
        Contestant("recurra", run, lambda: as_numpy(run(1))),
        Contestant("by hand", by_hand, lambda: as_numpy(by_hand(1))),
        compile_s,
        compile_by_hand_s,
    )


def repeatable(call: Callable[[], Any]) -> Callable[[int], Any]:
    """A function that makes k calls, waits for each, and returns the results of the last."""

    def run(index: int) -> Any:
        made = waited(call())
        for _ in range(index - 1):
            made = waited(call())
        return made

    return run


def started(make: Callable[[], Callable[[int], Any]]) -> tuple[Callable[[int], Any], float]:
    """What `make` returns, called once, and the seconds that both have taken of the processor."""
    since = time.process_time()
    run = make()
    run(1)
    return run, time.process_time() - since


def each(
    workloads: Sequence[Workload],
    measure: Callable[[Workload], Made],
    failed: Callable[[Workload, str], Made],
) -> list[Made]:
    """What `measure` makes of each workload, or `failed` of its error: one stops no suite."""
    made: list[Made] = []
    for workload in workloads:
        try:
            made.append(measure(workload))
        except Exception as error:
            if not isinstance(error, RecurraError):
                traceback.print_exc()
            progress(f"{workload.name}: {error}")
            reason = str(error).splitlines() or [""]
            made.append(failed(workload, f"{type(error).__name__}: {reason[0]}"))
    return made
