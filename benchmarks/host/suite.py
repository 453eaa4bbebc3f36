"""The suite `host`: the microseconds of one step of an environment, and of all around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.contest import each
from benchmarks.harness import Case, Row, paired, without
from benchmarks.host import NAMES
from benchmarks.pairs import Clock, interleaved
from benchmarks.parts import named
from benchmarks.table import markdown
from benchmarks.worker import in_worker
from benchmarks.workload import Workload
from recurra.errors import RecurraError
from recurra.support.cpu import cores

ROUNDS, QUICK_ROUNDS = 5, 1
BACKENDS = ("jax", "numpy", "torch")


@dataclass(frozen=True)
class HostRow(Row):
    """One program on one backend; `ours` and `theirs` are milliseconds of a step."""

    program: str = ""
    backend: str = ""
    mean_return: float = 0.0  # of episodes in the last quarter of a run
    mean_return_by_hand: float = 0.0
    why: str = ""  # it has no time


def suite(quick: bool = False, only: str | None = None, clock: Clock = "cpu") -> list[HostRow]:
    """Every program on every backend in a process of its own, on two cores if there are."""
    rows: list[HostRow] = []
    for name in named("host", NAMES, only):
        for backend in BACKENDS[:1] if quick else BACKENDS:
            arguments = {"name": name, "backend": backend, "quick": quick, "clock": clock}
            rows.append(HostRow(**in_worker(measure, arguments, threads=min(2, cores()))))
    return rows


def measure(name: str, backend: str, quick: bool, clock: Clock) -> dict[str, Any]:
    """The row of one program, taken in this process."""

    def time_both(workload: Workload) -> HostRow:
        sizes = workload.sizes()
        program, by_hand = workload.program(backend, sizes), workload.by_hand("jax", sizes)
        forms = {"recurra": program.run, "by hand": by_hand}
        found = {form: mean_return(run(1), workload, form, sizes) for form, run in forms.items()}
        runs = [repeated(run) for run in forms.values()]
        rounds = QUICK_ROUNDS if quick else ROUNDS
        ms = interleaved(runs, iterations=1, rounds=rounds, clock=clock) / sizes["steps"]
        case = Case(f"{name} on {backend}", "step_ms", threads=2, clock=clock)
        row = paired(case, "by hand", ms[:, 0], ms[:, 1], "work")
        ours, theirs = found["recurra"], found["by hand"]
        return HostRow(
            **asdict(row),
            program=name,
            backend=backend,
            mean_return=ours,
            mean_return_by_hand=theirs,
        )

    def failed(workload: Workload, why: str) -> HostRow:
        row = without(f"{name} on {backend}", "step_ms", "by hand", "failed")
        return HostRow(**asdict(row), program=name, backend=backend, why=why)

    (row,) = each([Workload("host", name)], time_both, failed)
    return asdict(row)


def repeated(run: Callable[[int], Any]) -> Callable[[int], Any]:
    """A function that makes k runs, of one seed each."""

    def runs(index: int) -> None:
        for seed in range(1, index + 1):
            run(seed)

    return runs


def mean_return(
    made: Mapping[str, Any], workload: Workload, form: str, sizes: Mapping[str, int]
) -> float:
    """The mean return of the last quarter; raises RecurraError if a form did not do its work."""
    reward, ended = np.asarray(made["reward"]), np.asarray(made["ended"])
    last = len(reward) * 3 // 4
    found = float(reward[last:].sum() / max(1.0, ended[last:].sum()))
    if reward.sum() != sizes["steps"] or found < workload.module.LEAST_RETURN:
        raise RecurraError(
            f"{workload.name}, {form}: it did not do its work",
            facts=f"{reward.sum():.0f} steps of {sizes['steps']}, a mean return of {found:.1f}; "
            f"{workload.module.LEAST_RETURN} is asked for",
        )
    return found


def table(rows: Sequence[HostRow]) -> str:
    """A line for each program and backend, in microseconds of a step."""
    lines = [
        [row.program, row.backend, row.why, *[""] * 4]
        if row.why
        else [row.program, row.backend]
        + [f"{ms * 1e3:.0f}" for ms in (row.ours, row.theirs)]
        + [f"{row.ratio:.2f}", f"{row.mean_return:.0f}", f"{row.mean_return_by_hand:.0f}"]
        for row in rows
    ]
    head = ["program", "backend", "step, µs", "by hand, µs", "by hand / step"]
    return markdown([*head, "mean return", "by hand"], lines)
