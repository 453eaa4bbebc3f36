"""Our tuned kernels beside NumPy, Torch and jax.jit, on one thread; compile times beside LLVM's.

Every answer is compared before anything is timed. Times are of calls from Python, ours too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any

import numpy as np

from recurra.bench.core import row_of
from recurra.bench.harness import (
    PAIRS,
    QUICK_PAIRS,
    Case,
    Contestant,
    Disagreement,
    Row,
    check,
    compare,
    progress,
)
from recurra.bench.nest_generators import TABLE, generators
from recurra.bench.nest_peers import contestant, inputs_of, peers
from recurra.bench.nest_policy import beside_searches, policies
from recurra.bench.nest_tvm import Tvm, available
from recurra.bench.pairs import ratio
from recurra.bench.worker import in_worker
from recurra.errors import ScheduleError
from recurra.nest import catalogue
from recurra.nest.actions import PAPER, Actions
from recurra.nest.check import compare as wrong
from recurra.nest.codegen import generate
from recurra.nest.compiled import compile as compiled
from recurra.nest.loops import Nest, untiled
from recurra.nest.measure import Evaluator, Protocol, compared, peak
from recurra.nest.native import Kernel
from recurra.nest.problem import Problem
from recurra.nest.table import tabulate
from recurra.nest.target import Target, runnable
from recurra.nest.tune import tuned

SIZES = range(64, 257, 16)  # of the paper: 13 per dim, 2197 in all
SPAN_MS = 3.0  # of one measured stretch of calls

KERNELS: Sequence[tuple[str, Problem, Mapping[str, int]]] = (
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
)
QUICK_KERNELS = (2, 6, 7, 9, 10)


def ours() -> None:
    """Stands where other suites name the program they measure: ours are the tuned kernels."""


def suite(ours: Any = None, quick: bool = False) -> list[Row]:
    """All rows, each part in a process of its own, on one core."""
    random = Random(2022)
    every = [(m, k, n) for m in SIZES for k in SIZES for n in SIZES]
    chosen = random.sample(every, 6 if quick else 200)
    rows = _part(compile_times, count=100 if quick else 300)
    rows += _part(peaks, seconds=2.0 if quick else 10.0)
    rows += _part(ceilings, sizes=chosen[: 2 if quick else 20])
    rows += _part(policies, count=4 if quick else 20)
    rows += _part(beside_searches, count=2 if quick else 12)
    some = ("CONV-3", "DWCONV-3", "MM-64", "MM-256") if quick else tuple(TABLE)
    rows += _part(generators, names=some, seconds=1.0 if quick else 5.0)
    matmuls: list[Row] = []
    for sizes in chosen:
        matmuls += _part(matmul, sizes=sizes, quick=quick)
    rows += matmuls + means(matmuls)
    kernels: list[Row] = []
    for k in QUICK_KERNELS if quick else range(len(KERNELS)):
        kernels += _part(kernel, which=k, quick=quick)
    return [*rows, *kernels, *best_of_peers(kernels)]


def _part(function: Callable[..., Any], **arguments: Any) -> list[Row]:
    return [row_of(row) for row in in_worker(function, arguments, threads=1)]


def matmul(sizes: tuple[int, int, int], quick: bool) -> list[dict[str, Any]]:
    """One size of the paper's data set."""
    m, k, n = sizes
    return _beside(f"matmul {m}x{k}x{n}", "matmul", catalogue.matmul(m, k, n), {}, quick)


def kernel(which: int, quick: bool) -> list[dict[str, Any]]:
    """One common shape of convolution, matrix-vector product, reduction, ..."""
    kind, p, options = KERNELS[which]
    shapes = " ".join("x".join(map(str, t.shape)) for t in p.inputs)
    return _beside(f"{kind} {shapes}", kind, p, options, quick)


def _beside(
    name: str, kind: str, p: Problem, options: Mapping[str, int], quick: bool
) -> list[dict[str, Any]]:
    """The best schedule that a search finds, against every peer; the limit is the measured peak."""
    on = runnable()[0]
    best = tuned(p, on, seconds=1.5 if quick else 5.0)
    progress(f"{name}: {best.best} is best, {best.nest.order}")
    inputs = inputs_of(p)
    call = compiled(p, schedule=best.nest, backend=on.name)  # pyright: ignore[reportArgumentType]
    out = call(*inputs)
    us = contestant("tuned", lambda: call(*inputs, out=out), inputs)
    iterations = max(3, min(2000, int(SPAN_MS / each_ms(us))))
    limit = p.flops / peak(on, fresh=True) / 1e6 if len(p.inputs) > 1 else None
    case = Case(name, metric="call_ms", limit=limit)
    pairs = QUICK_PAIRS if quick else PAIRS
    found = compare(case, us, peers(kind, inputs, options), pairs=pairs, iterations=iterations)
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
    tvm = Tvm(*inputs)
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


def peaks(seconds: float) -> list[dict[str, Any]]:
    """GFLOPS of the best schedule as a share of what a probe reaches in the same rounds."""
    rows: list[Row] = []
    for on in runnable():
        for n in (128, 256, 512, 1024):
            p = catalogue.matmul(n, n, n)
            best = tuned(p, on, seconds=seconds)  # from 512 on with what is packed, and its cost
            standing = compared([best.nest], on, rounds=15)[0]
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
            table = tabulate(p, replace(PAPER, steps=8), evaluate, peak(on))
            best = table.nest(int(table.gflops.argmax()))
            if words := wrong(best, Kernel(generate(best, on)).call, at_end=True):
                raise Disagreement(f"the {on} code of {best.order!r} is wrong", facts=words)
            us, plain = compared([best, untiled(p)], on, rounds=9)
            over = us.gflops / plain.gflops
            case = f"paper's preset, oracle {m}x{k}x{n} {on} 1T"
            rows.append(
                Row(case, "gflops", us.gflops, "untiled", plain.gflops, over, (over, over),
                    us.gflops / us.of_peak, "exact")
            )  # fmt: skip
            progress(f"{case}: {us.gflops:.0f} GFLOPS, {over:.2f} times untiled")
    return [asdict(row) for row in rows]


def compile_times(count: int) -> list[dict[str, Any]]:
    """Process CPU from a nest to a loaded kernel, over random schedules whose answers are right."""
    from recurra.nest import llvm

    rows: list[Row] = []
    for on in runnable():
        nests = list(_random_nests(on, count))
        ours_ms = np.array([compile_ms(Kernel, nest, on) for nest in nests])
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


def _random_nests(on: Target, count: int) -> list[Nest]:
    """Where ten random actions lead, of sizes that divide and sizes that do not; all checked."""
    random, found = Random(1), list[Nest]()
    while len(found) < count:
        sizes = [random.choice((17, 33, 64, 80, 96, 100, 128)) for _ in range(3)]
        nest = untiled(catalogue.matmul(*sizes))
        for _ in range(10):
            nest = random.choice(list(Actions().successors(nest).values()))
        try:
            words = wrong(nest, Kernel(generate(nest, on)).call, at_end=True)
        except ScheduleError:
            continue
        if words:
            raise Disagreement(f"the {on} code of {nest.order!r} is wrong", facts=words)
        found.append(nest)
    return found


def compile_ms(load: Callable[..., Any], nest: Nest, on: Target) -> float:
    fresh = replace(nest)  # nothing that is cached in a nest counts
    start = time.process_time()
    load(generate(fresh, on))
    return (time.process_time() - start) * 1e3
