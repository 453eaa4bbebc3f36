"""Measurement: what is run, how often, and what is remembered. No test depends on a speed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recurra.nest import catalogue, measure, timer
from recurra.nest.codegen import generate
from recurra.nest.einsum import from_sizes
from recurra.nest.executable_memory import LoadedKernel
from recurra.nest.llvm import host
from recurra.nest.loops import Nest, scheduled, untiled
from recurra.nest.measure import (
    Evaluator,
    KernelArrays,
    KernelTime,
    Protocol,
    code_key,
    measure_in_turns,
    measure_peak,
)
from recurra.nest.target import VectorTarget, runnable

ON = runnable()[0]
MATMUL = catalogue.matmul(33, 20, 40)


@pytest.mark.parametrize("in_python", [False, True])
@pytest.mark.parametrize("words", ["a->a", "a,a,a,a,a,a->a"])
def test_a_timer_runs_as_often_as_it_says(
    words: str, in_python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two and seven pointers; every run adds 1 to each element."""
    if in_python:
        monkeypatch.setattr(timer, "features", frozenset)
    p = from_sizes(words, (5,), initial=True)
    work = KernelArrays(p)
    for x in work.inputs:
        x[:] = 1
    work.out[:] = 0
    kernel = LoadedKernel(generate(untiled(p), ON))
    times = timer.run_times(kernel.address, work.addresses, 12)
    assert times.shape == (12,)
    assert (times > 0).all()
    assert (work.out == 12).all()


def test_ticks_are_seconds() -> None:
    assert 1e-10 < timer.seconds_per_tick() < 1e-8


def test_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fake(address: int, pointers: Any, runs: int) -> Any:
        asked.append(runs)
        return np.full(runs, 1e-3)

    monkeypatch.setattr(measure, "run_times", fake)
    monkeypatch.setattr(measure, "cpu_times", fake)
    work = KernelArrays(MATMUL)
    kernel = LoadedKernel(generate(untiled(MATMUL), ON))
    found = work.measure(kernel, Protocol(warmup=5, runs=3, seconds=0.01))
    assert (found.seconds, found.runs, found.given_up, asked) == (1e-3, 11, False, [1, 4, 11])
    asked.clear()
    hopeless = work.measure(kernel, Protocol(hopeless=4.0), best=1e-4)
    assert (hopeless.runs, hopeless.given_up, asked) == (2, True, [1, 1])


def test_long_runs_are_measured_in_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fake(name: str, seconds: float) -> Any:
        def times(address: int, pointers: Any, runs: int) -> Any:
            asked.append(f"{name} {runs}")
            return np.full(runs, seconds)

        return times

    monkeypatch.setattr(measure, "run_times", fake("wall", 0.02))
    monkeypatch.setattr(measure, "cpu_times", fake("cpu", 0.01))
    found = KernelArrays(MATMUL).measure(LoadedKernel(generate(untiled(MATMUL), ON)), Protocol())
    assert (found.seconds, asked) == (0.01, ["cpu 1", "cpu 2"])
    asked.clear()
    once = KernelArrays(MATMUL).measure(
        LoadedKernel(generate(untiled(MATMUL), ON)), Protocol(once=0.005)
    )
    assert (once.seconds, once.runs, asked) == (0.01, 1, ["cpu 1", "cpu 0"])


def test_a_glimpse_does_without_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs are long, a nest that is far slower is judged by a small share of its work."""
    p = catalogue.matmul(64, 64, 64)
    evaluate, runs = Evaluator(p, ON), list[int]()

    class Loaded:
        def __init__(self, nest: Nest, on: VectorTarget) -> None:
            self.flops = self.address = nest.problem.flops

    def ten_times_slower(address: int, pointers: Any, count: int) -> Any:
        runs.append(address)
        return np.full(count, address * 1e-6)

    def measured(self: KernelArrays, loaded: Any, protocol: Protocol, best: Any) -> KernelTime:
        runs.append(loaded.flops)
        return KernelTime(loaded.flops * 1e-7, 1)

    monkeypatch.setattr(measure, "kernel", Loaded)
    monkeypatch.setattr(measure, "run_times", ten_times_slower)
    monkeypatch.setattr(KernelArrays, "measure", measured)
    assert evaluate(scheduled(p, "m k n")) == pytest.approx(1e7 / 1e9)
    assert evaluate(scheduled(p, "k/32 k m n")) == pytest.approx(1e6 / 1e9)
    assert evaluate(scheduled(p, "m/32 k n/9 m n")) == pytest.approx(1e6 / 1e9)
    assert runs == [p.flops, p.flops // 64, p.flops // 128]


def test_cpu_time_runs_as_often_as_it_says() -> None:
    p = from_sizes("a->a", (5,), initial=True)
    work = KernelArrays(p)
    work.inputs[0][:] = 1
    work.out[:] = 0
    kernel = LoadedKernel(generate(untiled(p), ON))
    times = timer.cpu_times(kernel.address, work.addresses, 4)
    assert times.shape == (4,)
    assert (work.out == 4).all()


def test_nests_of_the_same_code_are_measured_once() -> None:
    evaluate = Evaluator(MATMUL, ON)
    first = evaluate(scheduled(MATMUL, "m k n"))
    assert first > 0
    assert evaluate(scheduled(MATMUL, "m/8 m k n")) == first
    assert evaluate(scheduled(MATMUL, "m/8 k m n")) > 0
    assert (evaluate.calls, evaluate.measured) == (3, 2)


def test_the_code_of_the_fastest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"m/4 k n": 3e-6, "m/8 k n": 1e-6, "k m n": 2e-6}
    made: list[str] = []

    def kernel(nest: Nest, on: VectorTarget) -> str:
        made.append(nest.order.split(" | ")[0])
        return made[-1]

    def measure_it(self: KernelArrays, loaded: str, protocol: Protocol, best: Any) -> KernelTime:
        return KernelTime(seconds[loaded], 1)

    monkeypatch.setattr(measure, "kernel", kernel)
    monkeypatch.setattr(KernelArrays, "measure", measure_it)
    evaluate = Evaluator(MATMUL, ON, keep=2)
    nests = [scheduled(MATMUL, f"{words} m" if "/" in words else words) for words in seconds]
    orders = [nest.order.split(" | ")[0] for nest in nests]
    seconds |= dict(zip(orders, seconds.values(), strict=True))
    for nest in nests:
        evaluate(nest)
    assert [evaluate.loaded(nest) for nest in nests] == orders
    assert made == [*orders, orders[0]], "only the slowest is compiled again"


def test_too_much_code_is_worth_nothing() -> None:
    p = catalogue.matmul(255, 255, 255)
    nest = scheduled(p, "m/100 k/100 n/100 m/30 k/30 n/30 m/7 k/7 n/7 m k n")
    assert Evaluator(p, ON)(nest) == 0.0


def test_keys() -> None:
    assert code_key(scheduled(MATMUL, "m/8 m k n")) == "m/1 k/1 n/1 | m/1 n/1"
    turned = catalogue.transposition(4, 5)
    assert code_key(scheduled(turned, "r c | c r")) == code_key(scheduled(turned, "r c | r c"))


def test_contestants_are_compared_with_a_probe() -> None:
    nests = [untiled(MATMUL), scheduled(MATMUL, "m/6 k m n")]
    standings = measure_in_turns(nests, ON, rounds=3, seconds=1e-4)
    for s in standings:
        assert s.gflops == pytest.approx(MATMUL.flops / s.seconds / 1e9)
        assert s.of_peak > 0
    assert measure_peak(host()) > 0


def test_peaks_are_measured_again_if_asked() -> None:
    first = measure_peak(ON)
    assert measure_peak(ON) == first
    assert measure_peak(ON, fresh=True) > 0
