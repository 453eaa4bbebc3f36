"""Our tuned kernels beside NumPy, Torch and jax.jit, on one thread; compile times beside LLVM's.

Every answer is compared before anything is timed. Times are of calls from Python, ours too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any

import numpy as np

from benchmarks.harness import (
    PAIRS,
    QUICK_PAIRS,
    TOLERANCE,
    Case,
    Contestant,
    Row,
    check,
    compare,
    progress,
    row_of,
)
from benchmarks.nest.generators import TABLE, generators
from benchmarks.nest.peers import contestant, inputs_of, peers
from benchmarks.nest.peers_tvm import Tvm, available
from benchmarks.nest.policy import beside_long, beside_searches, policies
from benchmarks.nest.programs import programs
from benchmarks.nest.roofline import ceilings, compile_times, peaks
from benchmarks.pairs import ratio
from benchmarks.parts import named
from benchmarks.worker import in_worker
from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.compiled import compile as compiled
from recurra.nest.measure import measure_peak
from recurra.nest.problem import NestProblem
from recurra.nest.register_scopes import SPARE
from recurra.nest.target import runnable
from recurra.nest.tune import tune_nest

SIZES = range(64, 257, 16)  # of the paper: 13 per dim, 2197 in all
ROUNDED = 8e-3  # of peers that give results of bf16
SPAN_MS = 3.0  # of one measured stretch of calls

KERNELS: Sequence[tuple[str, NestProblem, Mapping[str, int]]] = (
    ("convolution", catalogue.convolution(1, 56, 56, 64, 64), {}),
    ("convolution", catalogue.convolution(1, 28, 28, 128, 128), {}),
    ("convolution", catalogue.convolution(1, 14, 14, 256, 256), {}),
    ("convolution", catalogue.convolution(1, 28, 28, 64, 128, stride=2), {"stride": 2}),
    ("convolution", catalogue.convolution(1, 56, 56, 64, 128, 1), {}),
    ("depthwise", catalogue.depthwise(1, 56, 56, 64), {}),
    ("depthwise", catalogue.depthwise(1, 28, 28, 256), {}),
    ("matvec", catalogue.matvec(512, 512), {}),
    ("matvec", catalogue.matvec(128, 1024), {}),
    ("reduction", catalogue.reduction(512, 512), {}),
    ("pooling", catalogue.max_pooling(28, 28, 64), {"window": 2}),
    ("transposition", catalogue.transposition(512, 512), {}),
    ("bf16 matmul", catalogue.matmul(128, 128, 128, dtype="bf16"), {}),
    ("bf16 matmul", catalogue.matmul(256, 256, 256, dtype="bf16"), {}),
)
QUICK_KERNELS = (2, 6, 7, 9, 10, 12)
PARTS = (
    "compile", "peaks", "kernels", "matmul", "generators", "programs", "ceilings", "policy",
    "searches", "minutes",
)  # fmt: skip
FULL_SIZES, QUICK_SIZES = 200, 6
TOGETHER = 10  # sizes in one process
LONG_S, LONG_SIZES = 600.0, 6  # of search, beside a second of ours


def suite(quick: bool = False, only: str | None = None, sizes: str | None = None) -> list[Row]:
    """The rows of the parts that `only` names, each measured in processes of its own, on one core.

    `sizes` are the matrix products of the part matmul, drawn at random: how many, "100", or from
    one to another of them, "100..200".
    """
    every = [(m, k, n) for m in SIZES for k in SIZES for n in SIZES]
    first, last = _span(sizes, QUICK_SIZES if quick else FULL_SIZES, len(every))
    Random(2022).shuffle(every)
    rows: list[Row] = []
    for part in named("nest", PARTS, only):
        rows += (
            _matmuls(every[first:last], quick) if part == "matmul" else _rows(part, every, quick)
        )
    return rows


def _span(words: str | None, usual: int, most: int) -> tuple[int, int]:
    """From which size to before which."""
    if words is None:
        return 0, usual
    found = re.fullmatch(r"(?:(\d+)\.\.)?(\d+)", words)
    first, last = (int(x or 0) for x in found.groups()) if found else (0, 0)
    if not first < last <= most:
        raise RecurraError(
            f"the part matmul needs 1 to {most} sizes",
            facts=f"--sizes {words}",
            hint="as in --sizes 100 or --sizes 100..200",
        )
    return first, last


def _rows(part: str, every: list[tuple[int, int, int]], quick: bool) -> list[Row]:
    if part == "compile":
        return _part(compile_times, count=100 if quick else 300)
    if part == "peaks":
        return _part(peaks, seconds=2.0 if quick else 10.0)
    if part == "kernels":
        return _kernels(quick)
    if part == "generators":
        some = ("CONV-3", "DWCONV-3", "MM-64", "MM-256") if quick else tuple(TABLE)
        return _part(generators, names=some, seconds=1.0 if quick else 5.0)
    if part == "programs":
        return _part(programs, quick=quick)
    if part == "ceilings":
        return _part(ceilings, sizes=every[: 2 if quick else 20])
    if part == "policy":
        return _part(policies, count=4 if quick else 20)
    if part == "minutes":
        count, seconds = (2, 4.0) if quick else (LONG_SIZES, LONG_S)
        return _part(beside_long, count=count, seconds=seconds)
    return _part(beside_searches, count=2 if quick else 12)


def _matmuls(sizes: list[tuple[int, int, int]], quick: bool) -> list[Row]:
    rows: list[Row] = []
    for k in range(0, len(sizes), TOGETHER):
        rows += _part(matmuls, sizes=sizes[k : k + TOGETHER], quick=quick)
        progress("\n".join(f"{r.case} / {r.peer}: {r.ratio:.2f}" for r in means(rows)))
    return rows + means(rows)


def _kernels(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for k in QUICK_KERNELS if quick else range(len(KERNELS)):
        rows += _part(kernel, which=k, quick=quick)
    return [*rows, *best_of_peers([r for r in rows if not r.case.startswith("bf16")])]


def _part(function: Callable[..., Any], **arguments: Any) -> list[Row]:
    return [row_of(row) for row in in_worker(function, arguments, threads=1)]


def matmuls(sizes: Sequence[tuple[int, int, int]], quick: bool) -> list[dict[str, Any]]:
    """Sizes of the paper's data set."""
    rows: list[dict[str, Any]] = []
    for m, k, n in sizes:
        rows += _beside(f"matmul {m}x{k}x{n}", "matmul", catalogue.matmul(m, k, n), {}, quick)
    return rows


def kernel(which: int, quick: bool) -> list[dict[str, Any]]:
    """One common shape of convolution, matrix-vector product, reduction, ..."""
    kind, p, options = KERNELS[which]
    shapes = " ".join("x".join(map(str, t.shape)) for t in p.inputs)
    return _beside(f"{kind} {shapes}", kind, p, options, quick)


def _beside(
    name: str, kind: str, problem: NestProblem, options: Mapping[str, int], quick: bool
) -> list[dict[str, Any]]:
    """The best schedule that a search finds, against every peer; the limit is the measured peak."""
    on = runnable()[0]
    best = tune_nest(problem, on, seconds=1.5 if quick else 3.0)
    progress(f"{name}: {best.best} is best, {best.nest.order}")
    inputs = inputs_of(problem)
    call = compiled(problem, schedule=best.nest, backend=on.name)  # pyright: ignore[reportArgumentType]
    out = call(*inputs)
    us = contestant("tuned", lambda: call(*inputs, out=out), inputs)
    iterations = max(3, min(2000, int(SPAN_MS / each_ms(us))))
    limit = problem.flops / measure_peak(on, fresh=True) / 1e6 if len(problem.inputs) > 1 else None
    case = Case(name, metric="call_ms", limit=limit)
    pairs = QUICK_PAIRS if quick else PAIRS
    found = compare(
        case,
        us,
        peers(kind, inputs, options),
        pairs=pairs,
        iterations=iterations,
        tolerance=ROUNDED if any(t.dtype == "bf16" for t in problem.inputs) else TOLERANCE,
    )
    if kind == "matmul" and available():
        found.append(beside_tvm(case, us, inputs, pairs, iterations))
    return [asdict(row) for row in found]


def each_ms(us: Contestant) -> float:
    """Of one call, roughly: how many make a stretch is decided by it."""
    us.run(3)
    start = time.perf_counter()
    us.run(10)
    return (time.perf_counter() - start) * 100


def beside_tvm(
    case: Case, us: Contestant, inputs: Sequence[Any], pairs: int, iterations: int
) -> Row:
    """TVM runs in a process of its own, and tells its own process CPU."""
    on = runnable()[0]
    tvm = Tvm(inputs[0], inputs[1], (on.lanes("f32"), on.registers - SPARE))
    checked = check((us, us.answer()), (Contestant("TVM", tvm.run, tvm.answer), tvm.answer()))
    ms = np.empty((pairs, 2))
    for k in range(-1, pairs):  # the first round is thrown away
        start = time.process_time()
        us.run(iterations)
        ours_s = time.process_time() - start
        ms[k] = ours_s * 1e3 / iterations, tvm.run(iterations) * 1e3 / iterations
    tvm.end()
    middle, ci95 = ratio(ms[:, 0], ms[:, 1])
    ours_ms, theirs_ms = (float(x) for x in np.median(ms, axis=0))
    progress(f"{case}: {ours_ms:.3f} ms, TVM {theirs_ms:.3f} ms, ratio {middle:.2f}")
    return Row(str(case), case.metric, ours_ms, "TVM", theirs_ms, middle, ci95, case.limit, checked)


def means(rows: Sequence[Row]) -> list[Row]:
    """The geometric mean of the ratios against each peer; the interval is over sizes."""
    found: list[Row] = []
    for peer in dict.fromkeys(row.peer for row in rows):
        some = [row for row in rows if row.peer == peer]
        logs = np.log([row.ratio for row in some])
        drawn = np.random.default_rng(0).choice(logs, (2000, len(logs))).mean(axis=1)
        low, high = np.exp(np.quantile(drawn, (0.025, 0.975)))
        ours_ms, theirs_ms = (
            float(np.exp(np.log([getattr(row, side) for row in some]).mean()))
            for side in ("ours", "theirs")
        )
        found.append(
            replace(
                some[0],
                case=f"matmul, geometric mean of {len(some)} sizes",
                ours=ours_ms,
                theirs=theirs_ms,
                ratio=float(np.exp(logs.mean())),
                ci95=(float(low), float(high)),
                limit=None,
            )
        )
    return found


def best_of_peers(rows: Sequence[Row]) -> list[Row]:
    """The geometric mean over shapes of the ratio against whichever peer is fastest there."""
    hardest = [
        min((row for row in rows if row.case == case), key=lambda row: row.ratio)
        for case in dict.fromkeys(row.case for row in rows)
    ]
    return [
        replace(row, case=f"network shapes, geometric mean of {len(hardest)}")
        for row in means([replace(row, peer="the best peer") for row in hardest])
    ]
