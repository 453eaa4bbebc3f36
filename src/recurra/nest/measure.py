"""Measurements of kernels on a machine that is never idle.

The fastest of several runs after a warm-up counts; hopeless nests are given up after one run;
winners are measured again, interleaved with the baseline and with a probe of the machine's peak at
that moment. LoopTune (section 3.2) runs 20 times to warm up and then for 10 ms; the noise of one
machine was 3.5 % so, and 4.6 % with the fastest of three (hence the second round for winners).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from recurra.errors import ScheduleError
from recurra.nest.check import Examination, KernelCheckError
from recurra.nest.compiled import kernel, load
from recurra.nest.dtypes import DTYPES
from recurra.nest.executable_memory import NestKernel
from recurra.nest.loops import Nest, canonical, placed, restricted
from recurra.nest.problem import NestProblem, TensorAccess
from recurra.nest.program import Instruction, NestCode
from recurra.nest.reference import Array
from recurra.nest.target import VectorTarget
from recurra.nest.threads import Team
from recurra.nest.timer import Seconds, call_times, cpu_times, run_times

SAMPLED_WORK = 16  # a nest with long runs is first judged by such a fraction of its work
LONG = 0.002  # seconds: no run of this length is undisturbed, so its CPU time is measured
PAGE, PAST = 4096, 16  # bytes: the C library's large blocks begin so far after a page's beginning


@dataclass(frozen=True)
class Protocol:
    """Rules of a measurement: at least `runs` runs and `seconds`, after `warmup` runs.

    A nest whose first two runs take more than `hopeless` times the best known is given up. Runs of
    more than `once` seconds are not repeated.
    """

    warmup: int = 1
    runs: int = 3
    seconds: float = 0.001
    hopeless: float = 4.0
    once: float = 0.1


@dataclass(frozen=True)
class KernelTime:
    """The fastest run of a kernel, in seconds; `given_up` if there were only two."""

    seconds: float
    runs: int
    given_up: bool = False


class KernelArrays:
    """Arrays for the kernels of one problem, allocated once."""

    def __init__(self, problem: NestProblem, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.problem = problem
        self.arrays = [_array(t, random) for t in (*problem.inputs, problem.output)]
        self.addresses = [view.__array_interface__["data"][0] for view, _ in self.arrays]

    @property
    def inputs(self) -> list[Array]:
        return [view for view, _ in self.arrays[:-1]]

    @property
    def out(self) -> Array:
        return self.arrays[-1][0]

    def measure(
        self, loaded: NestKernel | Team, protocol: Protocol, best: float | None = None
    ) -> KernelTime:
        """Return the fastest run of a kernel; `best` is that of all kernels so far, in seconds."""
        first = float(self._times(loaded, 1, long=True)[0])
        if first > LONG:
            given_up = best is not None and first > protocol.hopeless * best
            runs = max(protocol.runs, int(protocol.seconds / first) + 1)
            more = 0 if given_up or first > protocol.once else runs - 1
            rest = self._times(loaded, more, long=True)
            return KernelTime(min([first, *rest]), 1 + more, given_up)
        if best is not None and first > protocol.hopeless * best:
            first = min(first, float(self._times(loaded, 1, long=False)[0]))  # was it disturbed?
            if first > protocol.hopeless * best:
                return KernelTime(first, 2, given_up=True)
        if protocol.warmup > 1:
            self._times(loaded, protocol.warmup - 1, long=False)
        runs = max(protocol.runs, min(10_000, int(protocol.seconds / max(first, 1e-7)) + 1))
        return KernelTime(float(self._times(loaded, runs, long=False).min()), runs)

    def _times(self, loaded: NestKernel | Team, runs: int, *, long: bool) -> Seconds:
        if isinstance(loaded, Team):
            return call_times(loaded.call, self.addresses, runs)
        return (cpu_times if long else run_times)(loaded.address, self.addresses, runs)


def _array(access: TensorAccess, random: np.random.Generator) -> tuple[Array, Array]:
    """Return a view with the access's strides, and its memory."""
    low, high = access.span
    memory = _memory(high - low + 1, DTYPES[access.dtype])
    memory[...] = random.random(len(memory))
    strides = [s * memory.itemsize for s in access.strides]
    return np.lib.stride_tricks.as_strided(memory[-low:], access.shape, strides), memory


def _memory(count: int, dtype: np.dtype) -> Array:
    """Return elements with the alignment of NumPy's large arrays.

    Vectors cross cache lines there, which costs nests that do not pack some percent: with another
    alignment a search would not see that.
    """
    raw = np.empty(count * dtype.itemsize + PAGE + PAST, np.uint8)
    start = -raw.ctypes.data % PAGE + PAST
    return raw[start : start + count * dtype.itemsize].view(dtype)


class Evaluator:
    """Measures the GFLOPS of nests of one problem, each once; 0 where a nest makes too much code.

    Nests that compile to the same code share one measurement. `calls` counts evaluations, and
    `measured` the nests that were compiled and run. The code of the `keep` fastest stays loaded.
    """

    def __init__(
        self,
        problem: NestProblem,
        target: VectorTarget,
        protocol: Protocol | None = None,
        keep: int = 0,
    ) -> None:
        self.problem, self.target = problem, target
        self.protocol = protocol or Protocol()
        self.workload = KernelArrays(problem)
        self.known: dict[str, float] = {}
        self.best: float | None = None
        self.calls = self.measured = 0
        self.keep, self._kept = keep, dict[str, tuple[float, NestKernel | Team]]()

    def __call__(self, nest: Nest) -> float:
        self.calls += 1
        key = code_key(nest)
        if key not in self.known:
            self.known[key] = self._measure(nest, key)
        return self.known[key]

    def loaded(self, nest: Nest) -> NestKernel | Team:
        """Load the code of a nest, unless it is; raise ScheduleError if it is too much."""
        _, found = self._kept.get(code_key(nest), (0.0, None))
        return found or kernel(nest, self.target)

    def knows(self, nest: Nest) -> bool:
        """Return whether a nest has been measured and can be used."""
        return self.known.get(code_key(nest), 0.0) > 0

    def _measure(self, nest: Nest, key: str) -> float:
        self.measured += 1
        try:
            if self.best is not None and self.best > LONG and not nest.packs:
                seconds = self._estimate(nest)
                if seconds > self.protocol.hopeless * self.best:
                    return self.problem.flops / seconds / 1e9
            loaded = kernel(nest, self.target)
        except ScheduleError:
            return 0.0
        found = self.workload.measure(loaded, self.protocol, self.best)
        self.best = min(found.seconds, self.best or found.seconds)
        if self.keep:
            self._kept[key] = found.seconds, loaded
            if len(self._kept) > self.keep:
                del self._kept[max(self._kept, key=lambda k: self._kept[k][0])]
        return self.problem.flops / found.seconds / 1e9

    def _estimate(self, nest: Nest) -> float:
        """Estimate the seconds of a run from the first trips of its outer loops.

        A run cannot be stopped, and the worst nests take a hundred times as long as the best. The
        second run finds the caches as later trips do.
        """
        left, share = dict(self.problem.extents), 1.0
        for index, step in nest.steps:
            if share < SAMPLED_WORK:
                share *= left[index] / min(step, left[index])
                left[index] = min(step, left[index])
        loaded = kernel(restricted(nest, left), self.target)
        assert loaded.address is not None, "a nest that is restricted is not parallel"
        return share * float(run_times(loaded.address, self.workload.addresses, 2).min())


def code_key(nest: Nest) -> str:
    """Return the key of a nest's code: the loops on which the code depends.

    Write loops matter only where sums pass through memory; they are part of the key wherever there
    is a reduction.
    """
    p = nest.problem
    loops, levels = placed(nest.steps, p.extents, [x.level for x in nest.packs])
    words = ["parallel"] * nest.parallel + [f"{i}/{s}" for i, s in loops]
    words += [f"[{x.tensor}]{level}" for x, level in zip(nest.packs, levels, strict=True)]
    if p.reduced and nest.write:
        words += ["|", *(f"{i}/{s}" for i, s in canonical(nest.write_steps, p.extents))]
    return " ".join(words)


def verify_kernel(
    nest: Nest, target: VectorTarget, threads: int | None = None, by: Examination | None = None
) -> None:
    """Raise KernelCheckError unless the nest's code computes its problem."""
    by = by or Examination(nest.problem, at_end=True)
    if mistake := by.mistake(kernel(nest, target, threads).call):
        raise KernelCheckError(f"the {target} code of {nest.order!r} is wrong", facts=mistake)


@dataclass(frozen=True)
class Standing:
    """A contestant after `measure_in_turns`: medians over rounds of each round's fastest run."""

    seconds: float
    gflops: float
    of_peak: float
    """Share of the GFLOPS that a probe on one thread reached in the same rounds"""


def measure_in_turns(
    nests: Sequence[Nest],
    target: VectorTarget,
    *,
    rounds: int = 9,
    seconds: float = 0.002,
    threads: int | None = None,
    workload: KernelArrays | None = None,
    more: Callable[[], bool] = lambda: True,
) -> list[Standing]:
    """Measure nests of one problem and a probe of the peak in turns, in alternating order.

    The first round drops those that are hopeless; further rounds follow while `more` returns True.
    `threads` share nests that are parallel. Raises ScheduleError where one makes too much code.
    """
    p, once = nests[0].problem, Protocol(runs=1, seconds=seconds, hopeless=np.inf)
    workload = workload or KernelArrays(p)
    kernels = [kernel(nest, target, threads) for nest in nests]
    times, peaks = np.full((rounds, len(nests)), np.nan), np.full(rounds, np.nan)
    order = list(range(len(nests)))
    for k in range(rounds):
        for j in order:
            times[k, j] = workload.measure(kernels[j], once).seconds
        peaks[k] = measure_peak(target, p.dtype, fresh=True)
        if not more():
            break
        slowest = Protocol.hopeless * np.nanmin(times)
        order = [j for j in reversed(order) if times[0, j] <= slowest]
    return [
        Standing(
            float(np.nanmedian(t)),
            float(np.nanmedian(p.flops / t / 1e9)),
            float(np.nanmedian(p.flops / t / 1e9 / peaks)),
        )
        for t in times.T
    ]


TRIPS = 2000


def measure_peak(target: VectorTarget, dtype: str = "f32", *, fresh: bool = False) -> float:
    """Measure the GFLOPS of multiply-adds in registers alone, an upper bound of every kernel.

    Measured once per process, and again if `fresh`, because clocks drift.
    """
    if fresh:
        _peak.cache_clear()
    return _peak(target, dtype)


@cache
def _peak(target: VectorTarget, dtype: str) -> float:
    loaded, work = _probe(target, dtype)
    memory = np.zeros(target.registers * target.bytes, np.uint8)
    return work / float(run_times(loaded.address, [memory.ctypes.data], 10).min()) / 1e9


@cache
def _probe(target: VectorTarget, dtype: str) -> tuple[NestKernel, int]:
    """Return a loop of independent multiply-adds, and the number of its operations.

    Registers are loaded and stored, so that no compiler can remove the loop.
    """
    chains, places = target.registers - 4, [target.bytes * r for r in range(target.registers - 2)]
    code: list[Instruction] = [("load", r, 0, o, 0) for r, o in enumerate(places)]
    code += [("repeat", TRIPS), *(("fma", r, chains, chains + 1, 0) for r in range(chains))]
    code += [("end",), *(("store", r, 0, o, 0) for r, o in enumerate(places[:chains]))]
    lanes = target.lanes(dtype)
    program = NestCode(target.name, dtype, lanes, 1, tuple(code), (), ())
    return load(program), 2 * lanes * chains * TRIPS
