"""The suite `programs`: how fast a program from a paper is beside the best form by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.contest import Contest, contest, each
from benchmarks.harness import Case, Row, check, paired, progress, without
from benchmarks.pairs import CLOCKS, Clock, interleaved
from benchmarks.parts import named
from benchmarks.programs import NAMES
from benchmarks.table import markdown
from benchmarks.worker import in_worker
from benchmarks.workload import Workload
from recurra.runtime.runner import RunRequest

ROUNDS, QUICK_ROUNDS = 40, 8
RUNS = 5  # of each form in a round


@dataclass(frozen=True)
class ProgramRow(Row):
    """One program; `ours` and `theirs` are milliseconds of a run, from arrays to arrays."""

    program: str = ""
    launches_ms: float = 0.0  # of a run, the compiled functions alone
    compile_s: float = 0.0
    compile_by_hand_s: float = 0.0
    why: str = ""  # it has no time


def suite(quick: bool = False, only: str | None = None, clock: Clock = "cpu") -> list[ProgramRow]:
    """Every program in a process of its own, on one core."""
    names, rows = named("programs", NAMES, only), list[ProgramRow]()
    for k, name in enumerate(names, 1):
        progress(f"{k} of {len(names)}: {name}")
        arguments = {"name": name, "quick": quick, "clock": clock}
        rows.append(ProgramRow(**in_worker(measure, arguments, threads=1)))
    return rows


def measure(name: str, quick: bool, clock: Clock) -> dict[str, Any]:
    """The row of one program, taken in this process."""
    rounds = QUICK_ROUNDS if quick else ROUNDS

    def time_both(workload: Workload) -> ProgramRow:
        both = contest(workload, workload.sizes())
        ours, theirs = both.ours, both.theirs
        checked = check((ours, ours.answer()), (theirs, theirs.answer()))
        runs = [ours.run, theirs.run]
        ms = interleaved(runs, iterations=RUNS, rounds=rounds, clock=clock)
        case = Case(workload.name, "run_ms", clock=clock)
        row = paired(case, theirs.name, ms[:, 0], ms[:, 1], checked)
        return ProgramRow(
            **asdict(row),
            program=workload.name,
            launches_ms=launches(both, rounds, clock),
            compile_s=both.compile_s,
            compile_by_hand_s=both.compile_by_hand_s,
        )

    def failed(workload: Workload, why: str) -> ProgramRow:
        row = without(workload.name, "run_ms", "by hand", "failed")
        return ProgramRow(**asdict(row), program=workload.name, why=why)

    (row,) = each([Workload("programs", name)], time_both, failed)
    return asdict(row)


def launches(both: Contest, runs: int, clock: Clock) -> float:
    """Milliseconds of a run's compiled functions, each waited for; the median of some runs."""
    now, runner, spent = CLOCKS[clock], both.program.runner, list[float]()
    wait = runner.execution.backend.wait

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*given: Any) -> Any:
            since = now()
            made = wait(function(*given))
            spent.append(now() - since)
            return made

        return launch

    if (single := runner.single) is not None:
        inputs = {x.name: single.backend.argument(both.given[x.name]) for x in single.read}
        whole = timed("program", single.arrays)

        def run() -> None:
            whole(np.uint32(0), inputs)
    else:
        execution = runner.execution.using(launches=timed)

        def run() -> None:
            runner.run_by(execution, RunRequest(inputs=both.given, native=True))

    totals: list[float] = []
    for _ in range(runs):
        spent.clear()
        run()
        totals.append(sum(spent))
    return float(np.median(totals)) * 1e3


def table(rows: Sequence[ProgramRow]) -> str:
    """A line for each program, the slowest beside its peer first, and the median."""
    timed = sorted((row for row in rows if not row.why), key=lambda row: row.ratio)
    lines = [
        [row.program]
        + [f"{ms:.2f}" for ms in (row.ours, row.launches_ms, row.theirs)]
        + [f"{x:.2f}" for x in (row.ratio, row.theirs / row.launches_ms)]
        + [f"{s:.1f}" for s in (row.compile_s, row.compile_by_hand_s)]
        for row in timed
    ]
    if timed:
        middle = [np.median([row.ratio for row in timed])]
        middle += [np.median([row.theirs / row.launches_ms for row in timed])]
        lines.append(["median", "", "", "", *(f"{x:.2f}" for x in middle), "", ""])
    lines += [[row.program, row.why, *[""] * 6] for row in rows if row.why]
    head = ["program", "run, ms", "launches, ms", "by hand, ms", "by hand / run"]
    return markdown([*head, "by hand / launches", "compile, s", "by hand, s"], lines)
