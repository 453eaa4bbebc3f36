"""Times that have a budget instead of a peer: compiling, scheduling, the host loop.

Process CPU; `theirs` is the budget, so a ratio above 1 keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.harness import Case, Row, progress
from benchmarks.worker import in_worker

COMPILE_S, OURS_S, SCHEDULE_S, HOST_US = 5.0, 1.0, 1.0, 2.0
STATEMENTS = 300


def suite() -> list[dict[str, Any]]:
    """Every budget, in a process of its own, as the fields of rows."""
    found: list[dict[str, Any]] = in_worker(measure, {}, threads=1)
    return found


def measure() -> list[dict[str, Any]]:
    rows = [*compile_rows(), schedule_row(), host_row()]
    return [asdict(r) for r in rows]


def row(what: str, metric: str, ours: float, budget: float, threads: int = 1) -> Row:
    progress(f"{what}: {ours:.3g}, budget {budget:g}")
    ratio = budget / ours
    return Row(
        str(Case(what, threads=threads)),
        metric,
        ours,
        "budget",
        budget,
        ratio,
        (ratio, ratio),
        None,
        "none",
    )


def best(function: Callable[[], Any], times: int) -> float:
    """The least process CPU seconds of several calls."""
    taken: list[float] = []
    for _ in range(times):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return min(taken)


def compile_rows() -> list[Row]:
    """The worked example from first line to first result, and the part of it that is ours."""
    from benchmarks.core.recurra_program import program

    def whole() -> None:
        program(512, 250, 8, gradients=False).run(seed=7)

    def ours() -> None:
        program(512, 250, 8, gradients=False)

    first = best(whole, 1)
    return [
        row("REINFORCE, trace, compile and 8 iterations", "compile_s", first, COMPILE_S),
        row("REINFORCE, trace and compile without XLA", "compile_s", best(ours, 5), OURS_S),
    ]


def synthetic(statements: int) -> str:
    """Chains of recurrences over i and t, up and down in time, windows and sums between."""
    lines = ["dims i<I, t<T", "zero: f32[] = const(value=0.0)"]
    last = "zero"
    for k in range(statements // 5):
        before = f"e{k - 1}[i-1]" if k else "zero"
        lines += [
            f"a{k}[i<I,t<T]: f32[] = merge({last}, b{k}[i,t-1], when=(t == 0, t > 0))",
            f"b{k}[i<I,t<T]: f32[] = tanh(a{k})",
            f"c{k}[i<I,t<T]: f32[] = sum(b{k}[i,t:min(t+3,T):pad(3)], axes=(0,))",
            f"d{k}[i<I]: f32[] = fold(c{k}[i,0:T])",
            f"e{k}[i<I]: f32[] = merge(d{k}, {before}, when=(i == 0, i > 0))",
        ]
        last = f"e{k}[i]"
    names = ", ".join(f"e{k}" for k in range(statements // 5))
    return "\n".join([*lines, f"return {names}"])


def schedule_row() -> Row:
    """A schedule of 300 statements, its legality checked."""
    from recurra.ir.graph_parser import parse
    from recurra.schedule.allen_kennedy import find_schedule
    from recurra.schedule.legality import violations

    graph, sizes = parse(synthetic(STATEMENTS)), {"I": 50, "T": 200}

    def work() -> None:
        assert not violations(find_schedule(graph, sizes), sizes)

    return row(
        f"{STATEMENTS} statements scheduled, legality checked",
        "schedule_s",
        best(work, 3),
        SCHEDULE_S,
    )


def host_row() -> Row:
    """A host loop around launches that do nothing: what the generated source itself costs."""
    from benchmarks.core.host_loop import launches, seconds_per_run

    n = launches()
    return row("host loop, per launch", "host_us", best(seconds_per_run, 5) / n * 1e6, HOST_US)
