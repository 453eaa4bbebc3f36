"""What schedules cost to compile, and what the best of them reach: of the machine's measured peak,
and of the paper's preset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any

import numpy as np

from benchmarks.harness import Disagreement, Row, progress
from benchmarks.pairs import ratio
from recurra.errors import ScheduleError
from recurra.nest import catalogue
from recurra.nest.actions import PAPER, Actions
from recurra.nest.check import compare as wrong
from recurra.nest.codegen import generate
from recurra.nest.executable_memory import LoadedKernel
from recurra.nest.loops import Nest, untiled
from recurra.nest.measure import Evaluator, Protocol, measure_in_turns, measure_peak
from recurra.nest.measured_table import tabulate
from recurra.nest.target import VectorTarget, runnable
from recurra.nest.tune import tune_nest


def compile_times(count: int) -> list[dict[str, Any]]:
    """Process CPU from a nest to a loaded kernel, over random schedules whose answers are right."""
    from recurra.nest import llvm

    rows: list[Row] = []
    for on in runnable():
        nests = list(random_nests(on, count))
        ours_ms = np.array([compile_ms(LoadedKernel, nest, on) for nest in nests])
        some = nests[:: max(1, count // 30)]
        theirs = np.array([compile_ms(llvm.LlvmKernel, nest, on) for nest in some])
        paired = ours_ms[:: max(1, count // 30)]
        middle, ci95 = ratio(paired, theirs)
        case = f"compile, {count} random schedules of matmul, {on} 1T"
        ours_median, theirs_median = float(np.median(ours_ms)), float(np.median(theirs))
        rows.append(
            Row(case, "compile_ms", ours_median, "LLVM O1", theirs_median, middle, ci95, None,
                "exact")
        )  # fmt: skip
        progress(f"{case}: {ours_median:.3f} ms, LLVM {theirs_median:.1f} ms")
    return [asdict(row) for row in rows]


def random_nests(on: VectorTarget, count: int) -> list[Nest]:
    """Where ten random actions lead, of sizes that divide and sizes that do not; all checked."""
    random, found = Random(1), list[Nest]()
    while len(found) < count:
        sizes = [random.choice((17, 33, 64, 80, 96, 100, 128)) for _ in range(3)]
        nest = untiled(catalogue.matmul(*sizes))
        for _ in range(10):
            nest = random.choice(list(Actions().successors(nest).values()))
        try:
            words = wrong(nest, LoadedKernel(generate(nest, on)).call, at_end=True)
        except ScheduleError:
            continue
        if words:
            raise Disagreement(f"the {on} code of {nest.order!r} is wrong", facts=words)
        found.append(nest)
    return found


def compile_ms(load: Callable[..., Any], nest: Nest, on: VectorTarget) -> float:
    fresh = replace(nest)  # nothing that is cached in a nest counts
    start = time.process_time()
    load(generate(fresh, on))
    return (time.process_time() - start) * 1e3


def peaks(seconds: float) -> list[dict[str, Any]]:
    """GFLOPS of the best schedule as a share of what a probe reaches in the same rounds."""
    rows: list[Row] = []
    for on in runnable():
        for n in (128, 256, 512, 1024):
            p = catalogue.matmul(n, n, n)
            best = tune_nest(
                p, on, seconds=seconds
            )  # from 512 on with what is packed, and its cost
            standing = measure_in_turns([best.nest], on, rounds=15)[0]
            share, at_most = standing.of_peak, standing.gflops / standing.of_peak
            case = f"matmul {n}x{n}x{n} {on} 1T"
            rows.append(
                Row(case, "gflops", standing.gflops, "peak probe", at_most, share,
                    (share, share), at_most, "exact")
            )  # fmt: skip
            progress(f"{case}: {standing.gflops:.0f} GFLOPS, {share:.0%} of the peak")
    return [asdict(row) for row in rows]


def ceilings(sizes: Sequence[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """The best nest that eight actions of the paper's preset reach, by measuring all, over untiled.

    No policy can be above it; the paper reports a median of 3.2 for its own, on AVX2.
    """
    rows: list[Row] = []
    for on in runnable():
        for m, k, n in sizes:
            p = catalogue.matmul(m, k, n)
            evaluate = Evaluator(p, on, Protocol(seconds=0.0005))
            table = tabulate(p, replace(PAPER, steps=8), evaluate, measure_peak(on))
            best = table.nest(int(table.gflops.argmax()))
            if words := wrong(best, LoadedKernel(generate(best, on)).call, at_end=True):
                raise Disagreement(f"the {on} code of {best.order!r} is wrong", facts=words)
            us, plain = measure_in_turns([best, untiled(p)], on, rounds=9)
            over = us.gflops / plain.gflops
            case = f"paper's preset, oracle {m}x{k}x{n} {on} 1T"
            rows.append(
                Row(case, "gflops", us.gflops, "untiled", plain.gflops, over, (over, over),
                    us.gflops / us.of_peak, "exact")
            )  # fmt: skip
            progress(f"{case}: {us.gflops:.0f} GFLOPS, {over:.2f} times untiled")
    return [asdict(row) for row in rows]
