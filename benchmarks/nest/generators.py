"""Table 1 of LoopTune: our encoders beside LLVM, on the same vector programs.

The paper names its convolutions by number only; these are layers of ResNet (3×3, channels doubling
as the image halves) and MobileNet. The schedule of each row is the best that a search finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.harness import Disagreement, Row, progress
from benchmarks.nest.roofline import compile_ms
from benchmarks.pairs import ratio
from recurra.nest import catalogue
from recurra.nest.check import compare as wrong
from recurra.nest.codegen import generate
from recurra.nest.executable_memory import LoadedKernel
from recurra.nest.loops import Nest
from recurra.nest.measure import KernelArrays, Protocol
from recurra.nest.problem import NestProblem
from recurra.nest.target import VectorTarget, runnable
from recurra.nest.tune import tune_nest

TABLE: Mapping[str, NestProblem] = {
    "CONV-1": catalogue.convolution(1, 56, 56, 64, 64),
    "CONV-2": catalogue.convolution(1, 28, 28, 128, 128),
    "CONV-3": catalogue.convolution(1, 14, 14, 256, 256),
    "CONV-4": catalogue.convolution(1, 7, 7, 512, 512),
    "DWCONV-1": catalogue.depthwise(1, 112, 112, 32),
    "DWCONV-2": catalogue.depthwise(1, 56, 56, 128),
    "DWCONV-3": catalogue.depthwise(1, 28, 28, 256),
    "DWCONV-4": catalogue.depthwise(1, 14, 14, 512),
    **{f"MM-{n}": catalogue.matmul(n, n, n) for n in (64, 128, 256, 512)},
}
ROUNDS = 9


def generators(names: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Two rows per problem and target: compilation, and what is compiled."""
    rows: list[Row] = []
    for on in runnable():
        for name in names:
            p = TABLE[name]
            nest = tune_nest(p, on, seconds=seconds).nest
            shapes = " ".join("x".join(map(str, t.shape)) for t in p.inputs)
            pair = _rows(nest, on, f"table 1, {name} {shapes} {on} 1T")
            progress(
                f"{pair[0].case}: {pair[0].ours:.2f} ms, LLVM {pair[0].theirs:.1f} ms; "
                f"{pair[1].ours:.0f} GFLOPS, LLVM {pair[1].theirs:.0f}"
            )
            rows += pair
    return [asdict(row) for row in rows]


def _rows(nest: Nest, on: VectorTarget, case: str) -> list[Row]:
    from recurra.nest.llvm import LlvmKernel

    makers = LoadedKernel, LlvmKernel
    kernels = [make(generate(nest, on)) for make in makers]
    for maker, kernel in zip(makers, kernels, strict=True):
        if words := wrong(nest, kernel.call, at_end=True):
            raise Disagreement(f"the {maker.__name__} of {nest.order!r} is wrong", facts=words)
    workload, protocol = (
        KernelArrays(nest.problem),
        Protocol(runs=3, seconds=0.002, hopeless=np.inf),
    )
    ms, times = np.empty((ROUNDS, 2)), np.empty((ROUNDS, 2))
    for k in range(ROUNDS):
        for j in (0, 1) if k % 2 else (1, 0):
            times[k, j] = workload.measure(kernels[j], protocol).seconds * 1e3
            ms[k, j] = compile_ms(makers[j], nest, on)
    flops = nest.problem.flops / 1e6
    compiled, ran = ratio(ms[:, 0], ms[:, 1]), ratio(times[:, 0], times[:, 1])
    gflops = (float(np.median(flops / x)) for x in times.T)
    middle = (float(np.median(x)) for x in ms.T)
    found = (("compile_ms", *middle, *compiled), ("gflops", *gflops, *ran))
    return [
        Row(case, metric, ours, "LLVM O1", theirs, over, ci95, None, "exact")
        for metric, ours, theirs, over, ci95 in found
    ]
