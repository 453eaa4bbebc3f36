"""The suite `launch`: the microseconds of a run that a call of the form by hand does not take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.contest import contest, each
from benchmarks.harness import Case, Row, check, paired, without
from benchmarks.launch import NAMES
from benchmarks.pairs import Clock, interleaved
from benchmarks.parts import named
from benchmarks.table import markdown
from benchmarks.worker import in_worker
from benchmarks.workload import Workload

CALLS, QUICK_CALLS = 2000, 300
ROUTES = {  # backend, and whether results are left as its arrays
    "jax": ("jax", True),
    "jax to NumPy": ("jax", False),
    "numpy": ("numpy", True),
    "torch": ("torch", True),
}


@dataclass(frozen=True)
class LaunchRow(Row):
    """One program on one route; `ours` and `theirs` are milliseconds of a call."""

    program: str = ""
    route: str = ""
    more_us: float = 0.0  # the median, over pairs of calls, of what ours takes longer
    why: str = ""  # it has no time


def suite(quick: bool = False, only: str | None = None, clock: Clock = "cpu") -> list[LaunchRow]:
    """A process for each route, on one core, measures all programs."""
    names, rows = named("launch", NAMES, only), list[LaunchRow]()
    for route in ROUTES:
        arguments = {"route": route, "names": list(names), "quick": quick, "clock": clock}
        rows += [LaunchRow(**row) for row in in_worker(measure, arguments, threads=1)]
    return rows


def measure(route: str, names: list[str], quick: bool, clock: Clock) -> list[dict[str, Any]]:
    """The rows of one route, taken in this process."""
    calls = QUICK_CALLS if quick else CALLS

    def time(workload: Workload) -> LaunchRow:
        backend, native = ROUTES[route]
        sizes = workload.sizes()
        case = Case(f"{workload.name} on {route}", "call_ms", clock=clock)
        both = contest(workload, sizes, backend, native)
        ours, theirs = both.ours, both.theirs
        checked = check((ours, ours.answer()), (theirs, theirs.answer()))
        ms = interleaved([ours.run, theirs.run], iterations=1, rounds=calls, clock=clock)
        row = paired(case, theirs.name, ms[:, 0], ms[:, 1], checked)
        more = float(np.median(ms[:, 0] - ms[:, 1])) * 1e3
        return LaunchRow(**asdict(row), program=workload.name, route=route, more_us=more)

    def failed(workload: Workload, why: str) -> LaunchRow:
        row = without(f"{workload.name} on {route}", "call_ms", "by hand", "failed")
        return LaunchRow(**asdict(row), program=workload.name, route=route, why=why)

    return [asdict(row) for row in each([Workload("launch", n) for n in names], time, failed)]


def table(rows: Sequence[LaunchRow]) -> str:
    """A line for each program and route, in microseconds; then the median of each route."""
    lines = [
        [row.program, row.route, row.why, "", ""]
        if row.why
        else [row.program, row.route]
        + [f"{us:.0f}" for us in (row.ours * 1e3, row.theirs * 1e3, row.more_us)]
        for row in rows
    ]
    for route in ROUTES:
        more = [row.more_us for row in rows if row.route == route and not row.why]
        if more:
            lines.append(["median", route, "", "", f"{np.median(more):.0f}"])
    return markdown(["program", "route", "run, µs", "by hand, µs", "more, µs"], lines)
