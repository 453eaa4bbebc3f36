"""Mapped programs run for real, from RAM and a disk, beside what the simulator says of them.

`step_ms` is a step as measured, beside the simulated one: the ratio is simulated over measured,
1 is ideal; the limit is what instructions take with everything in RAM. Beside other answers the
ratio is theirs over ours, both measured. Every result is the unmapped run's, to the last bit.
Prices are measured in turns with the steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.harness import Row, progress
from benchmarks.mapping.runs import Wanted
from benchmarks.pairs import ratio
from recurra.mapping.engine_choice import engine
from recurra.mapping.execute.compare import ComparedProblem, compare
from recurra.mapping.execute.jax_workloads import workload_of
from recurra.mapping.solvers import solver_of
from recurra.storage.mapping_problem import Problem, Solution, nothing

OURS = "default"
PROGRAMS = (  # and the mebibytes of fast memory
    ("ppo_step", 12),
    ("rnn_train", 16),
    ("gru_infer", 32),
    ("bilstm_infer", 12),
    ("transformer_infer", 48),
)
QUICK = ("ppo_step", "rnn_train")
ROUNDS, QUICK_ROUNDS = 11, 7
SECONDS = 4.0  # CPU time of a search


def answers(problem: Problem) -> Mapping[str, Solution]:
    """By solver."""
    found = {who: solver_of(who)(problem, SECONDS, 0, None, engine()) for who in (OURS, "xla-like")}
    return {**found, "everything slow": nothing(problem)}


def executed(quick: bool, wanted: Wanted) -> list[Row]:
    """Rows per program and answer, of the instances that are wanted."""
    rows: list[Row] = []
    some = wanted.among(QUICK if quick else tuple(dict(PROGRAMS)), None)
    for name, mebibytes in PROGRAMS:
        if name in some:
            work = workload_of(name)
            progress(str(work))
            rounds = QUICK_ROUNDS if quick else ROUNDS
            done = compare(work, mebibytes << 20, answers, rounds=rounds)
            progress(f"{done.slow}; {done.prices}")
            progress(f"{done.steady} of {rounds} rounds on a steady machine")
            rows += rows_of(f"{name} {mebibytes}MiB", done)
    return rows


def rows_of(case: str, done: ComparedProblem) -> list[Row]:
    """Each answer beside the simulator, and ours beside the others."""
    rows: list[Row] = []
    limit = sum(done.prices.instructions) * 1e3
    ours = done.comparisons[OURS]
    for name, x in done.comparisons.items():
        middle, ci95 = ratio(x.measured, x.simulated)
        mine, theirs = x.medians
        who = f"{case} {name}"
        rows.append(Row(who, "step_ms", mine, "simulated", theirs, middle, ci95, limit, "exact"))
        progress(f"{who}: {x}")
    for name, x in done.comparisons.items():
        if x is not ours:
            middle, ci95 = ratio(ours.measured, x.measured)
            mine, theirs = (float(np.median(y.measured)) for y in (ours, x))
            rows.append(Row(case, "step_ms", mine, name, theirs, middle, ci95, limit, "exact"))
    return rows
