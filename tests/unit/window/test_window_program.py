"""Launches of compiled programs through a window: the same bits, and only what memory asks for."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from acting_programs import KINDS, World
from acting_programs import program as acting
from actor_critic import actor_critic
from random_programs import Case, programs
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.codegen.access_ranges import Spans, accessed_places, cut
from recurra.codegen.host_program import HostCall, HostLoop, RegionLaunch
from recurra.codegen.lowering import lower
from recurra.codegen.region import Region
from recurra.codegen.region_function import times
from recurra.compiler.options import CompileOptions
from recurra.compiler.pipeline import compile_graph
from recurra.cost.tuning_knobs import Tuning
from recurra.errors import RecurraError
from recurra.report.timeline import concurrency_text
from recurra.runtime.concurrent_launches import LaunchWindows, windowed
from recurra.runtime.executable import Executable
from recurra.runtime.host_executor import Execution
from recurra.runtime.runner import Runner, RunRequest
from recurra.schedule.tree import Loop
from recurra.window import Executor, KernelError
from recurra.window.gain_model import GainModel
from recurra.window.history_checker import violations
from recurra.window.timed_stretches import Stretch

SIZES = {"B": 3, "I": 2, "T": 9}
ROWS = dict(B=8, I=2, T=7)


def apart(kind: str, backend: str = "numpy") -> Executable:
    """Acting and learning as launches of their own."""
    return acting(World(), kind).compile(SIZES, backend=backend, min_overlapped_ns=0.0)


def equal(found: dict[str, Any], want: dict[str, Any]) -> None:
    assert found.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(found[name], want[name], err_msg=name)


def slowed(program: Executable, seed: int) -> Executable:
    """The program with launches that take random times."""
    draw, made = random.Random(seed), copy(program)

    def slow(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            time.sleep(draw.choice((0.0, 0.0005, 0.002)))
            return f(*given)

        return run

    execution = copy(program.execution)
    execution.regions = {name: slow(f) for name, f in execution.regions.items()}
    made.runner = Runner(made.compilation, execution)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_whatever_takes_how_long(kind: str, backend: str) -> None:
    want = apart(kind, backend).run(seed=4)
    for k, (slots, threads) in enumerate([(1, 2), (2, 2), (32, 3), (64, 4)]):
        with Executor(threads, slots, policy="always", record=True) as run:
            equal(slowed(apart(kind, backend), k).run(seed=4, window=run), want)
        assert violations(run.tasks, run.events, slots=slots) == ()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("groups", [1, 2])
def test_an_environment_is_stepped_in_order(backend: str, groups: int) -> None:
    ctx = actor_critic("autoreset")
    want = ctx.compile(ROWS, backend=backend, groups=groups).run(seed=3)
    program = ctx.compile(ROWS, backend=backend, groups=groups)
    equal(slowed(program, 1).run(seed=3, window=3), want)
    equal(program.run(seed=3, window=2), want)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_rows_that_the_data_end(backend: str) -> None:
    """The host asks after every step whether one goes on: it waits for that launch."""

    def program() -> Executable:
        ctx = rc.Context(dims="b i t")
        with ctx as ((b, B), (i, _), (t, T)):
            env = rc.rl.env.make("CartPole-v1", vectorization_mode="sync")
            o = rc.like(env.observation_space, domain=(b, i, t))
            o[b, i, 0] = env.reset(domain=(b, i))
            o[b, i, t + 1], r, d = env.step((o[b, i, t].sum() > 0.0).cast("i32"))
            rc.log(steps=r[0:B, i, 0:T].sum())
            rc.output(r=r[b, i, t:T].discounted_sum(0.9))
        return ctx.compile({B: 4, "I": 3, T: rc.until(d, max=40)}, backend=backend)

    equal(slowed(program(), 2).run(seed=7, window=3), program().run(seed=7))


def replaced(program: Executable, regions: dict[str, Callable[..., Any]]) -> Executable:
    """The program with other functions for some of its regions."""
    made, execution = copy(program), copy(program.execution)
    execution.regions = {**execution.regions, **regions}
    made.runner = Runner(made.compilation, execution)
    return made


def test_acting_does_not_wait_for_learning() -> None:
    """Each step learns only once the next one acts: in order, that would never be."""
    program = apart("first")
    (outer,) = (it for it in program.compiled.program.items if isinstance(it, HostLoop))
    steps = next(it for it in outer.body if isinstance(it, HostLoop) and it.lo == 1)
    call, act, learn = steps.body
    assert isinstance(call, HostCall)
    assert isinstance(act, RegionLaunch)
    assert isinstance(learn, RegionLaunch)
    acts = {(i, t): threading.Event() for i in range(SIZES["I"]) for t in range(steps.hi)}
    waited: list[bool] = []
    regions = program.execution.regions

    def acting(seed: Any, i: int, t: int, *given: Any) -> Any:
        acts[i, t].set()
        return regions[act.region.name](seed, i, t, *given)

    def learning(seed: Any, i: int, t: int, *given: Any) -> Any:
        if t + 1 < steps.hi:
            waited.append(acts[i, t + 1].wait(20))
        return regions[learn.region.name](seed, i, t, *given)

    changed = replaced(program, {act.region.name: acting, learn.region.name: learning})
    with Executor(2, policy="always") as run:
        found = changed.run(window=run)
    assert waited == [True] * (SIZES["I"] * (steps.hi - 2))
    equal(found, apart("first").run())


# ---- what is told of launches, against what they do


def scrambled(array: np.ndarray, but: np.ndarray) -> np.ndarray:
    """Other numbers in the same range, except where `but` holds."""
    other = ~array if array.dtype == bool else np.flip(array) + array.dtype.type(1)
    return np.where(but, array, other)


def places_of(array: np.ndarray, at: tuple[int, ...], slots: tuple[int, ...], told: Spans) -> Any:
    """Which elements of a store lie at these places of it, cut along its axes `at`."""
    mask = np.zeros(array.shape, bool)
    for lo, hi in told:
        for place in range(lo, hi):
            where: list[Any] = [slice(None)] * array.ndim
            for axis, k in zip(at, np.unravel_index(place, slots), strict=True):
                where[axis] = int(k)
            mask[tuple(where)] = True
    return mask


def watched(execution: Execution) -> Execution:
    """Launches find something else wherever they are not said to look, and must leave it so."""
    p, made = execution.program, copy(execution)
    axes = cut(p.plan, p.regions)

    def watch(r: Region, f: Callable[..., Any]) -> Callable[..., Any]:
        told, names, first = accessed_places(p.plan, r, axes), (*r.stores, *r.reads), 1 + times(r)
        first += len(r.held) + len(r.carried)

        def run(*given: Any) -> Any:
            before: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
            stores = dict(zip(names, given[first:], strict=True))
            for s, (read, written) in told(given[1 : 1 + len(r.around)]).items():
                kept, array = p.plan.stores[s].kept, stores[s]
                at = tuple(kept.index(a) for a in axes[s])
                slots = tuple(a.slots for a in axes[s])
                reads, writes = (places_of(array, at, slots, x) for x in (read, written))
                old, new = array.copy(), scrambled(array, reads)
                array[...] = new
                before.append((array, old, new, writes))
            out = f(*given)
            for array, old, new, writes in before:
                assert np.array_equal(array[~writes], new[~writes], equal_nan=True), r.name
                array[...] = np.where(writes, array, old)
            return out

        return run

    made.regions = {r.name: watch(r, execution.regions[r.name]) for r in p.regions}
    return made


def finished(execution: Execution) -> dict[str, Any]:
    steps = execution.steps()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("kind", KINDS)
def test_launches_touch_what_is_told(kind: str) -> None:
    equal(finished(watched(apart(kind).execution)), finished(apart(kind).execution))


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_so_do_those_of_groups(groups: int) -> None:
    program = actor_critic("autoreset").compile(ROWS, backend="numpy", groups=groups)
    equal(finished(watched(program.execution)), finished(program.execution))


def hosted(case: Case, counted: bool) -> Execution | None:
    """A random program whose loops the host runs."""
    p = compile_graph(case.graph, case.sizes, CompileOptions(tuning=Tuning(vectorized=False))).plan
    loops = [x for x in p.schedule.items if isinstance(x, Loop)]
    if not loops:
        return None
    inner = [x for loop in loops for x in loop.body if isinstance(x, Loop) and x.step > 0]
    if counted:
        made = lower(p, host_loops=frozenset(x.dim for x in inner))
    else:
        made = lower(p, split_loop=loops[-1].id)
    backend: Any = NumpyBackend()
    return Execution(made, backend)


@pytest.mark.slow
@given(case=programs(), counted=st.booleans(), slots=st.sampled_from([1, 3, 32]))
@settings(max_examples=40)
def test_random_programs(case: Case, counted: bool, slots: int) -> None:
    execution = hosted(case, counted)
    if execution is None:
        return
    with np.errstate(all="ignore"):
        want = finished(execution)
        equal(finished(watched(execution)), want)
        with Executor(3, slots, policy="always", record=True) as run:
            equal(finished(windowed(execution, run)), want)
    assert violations(run.tasks, run.events, slots=slots) == ()


# ---- what a user sees


def test_a_launch_that_fails_is_told_by_its_name() -> None:
    program = apart("first")
    last = program.compiled.program.regions[-1]

    def fails(*given: Any) -> Any:
        raise FloatingPointError("too large")

    with pytest.raises(KernelError, match=rf"kernel {last.name} failed: FloatingPointError"):
        replaced(program, {last.name: fails}).run(window=2)


def runs(kind: str, count: int) -> list[dict[str, Any]]:
    """In order, one after the other: the world goes on."""
    program = apart(kind)
    return [program.run(seed=4) for _ in range(count)]


def settled(on: bool, gain: float) -> Executable:
    """A program of which it is known whether a window pays."""
    program = apart("first")
    program.run(seed=4, window=2)
    judged = program.runner.windows.judged(2)
    judgment, trial = judged.stretch.judgment, judged.stretch.judgment.trial
    judgment.predicted = 1.5
    while trial.examining:
        way = trial.next(0.0)
        trial.done(way, 1 / gain if way else 1.0, 1.0, time.perf_counter())
    assert trial.next(0.0) == on
    judged.stretch.end(healthy=True)
    return program


def test_what_does_not_pay_is_in_order_as_if_there_were_no_window() -> None:
    program, (_, second, third) = settled(on=False, gain=0.8), runs("first", 3)
    judged = program.runner.windows.judged(2)
    assert judged.ends_before_comparison()
    equal(program.run(seed=4, window=2), second)
    assert program.window is judged
    assert str(judged).startswith(
        "in order, since through a window of 2 threads they were at best 0.80 times as fast; looked"
    )
    judged.seconds = 1e9  # longer than it rests: launches pass by the executor, at once
    assert not judged.ends_before_comparison()
    equal(program.run(seed=4, window=2), third)
    assert judged.stretch.runs_in_order


def test_what_pays_goes_through_the_window() -> None:
    program = settled(on=True, gain=1.25)
    judged = program.runner.windows.judged(2)
    assert not judged.ends_before_comparison()
    equal(program.run(seed=4, window=2), runs("first", 2)[1])
    assert "2 threads, at best 1.25 times as fast" in str(judged) or judged.stretch.runs_in_order


def test_a_launch_that_fails_in_order_is_told_as_in_a_window() -> None:
    program = settled(on=False, gain=0.8)
    last = program.compiled.program.regions[-1]

    def fails(*given: Any) -> Any:
        raise FloatingPointError("too large")

    failing = program.execution.using(launches=lambda name, f: fails if name == last.name else f)
    for rests in (True, False):
        windows = LaunchWindows(failing)
        judged = windows.judged(2)
        judged.stretch = settled(on=False, gain=0.8).runner.windows.judged(2).stretch
        judged.seconds = 0.0 if rests else 1e9
        assert judged.ends_before_comparison() == rests
        with (
            pytest.raises(KernelError, match=rf"kernel {last.name} failed: FloatingPointError"),
            windows.launches(2) as launches,
        ):
            program.runner.run_by(launches.execution, RunRequest())


def test_runs_at_the_same_time_are_judged_apart() -> None:
    judged = apart("first").runner.windows.judged(2)
    with judged.continued() as one:
        with judged.continued() as other:
            assert one is judged.stretch
            assert other.judgment is not one.judgment
        with pytest.raises(KeyError), judged.continued():
            raise KeyError
        assert one is judged.stretch
    with pytest.raises(KeyError), judged.continued():
        raise KeyError
    assert judged.stretch is not one
    assert judged.stretch.judgment is one.judgment


@pytest.mark.slow
@pytest.mark.parametrize("launches", [2, 3, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_when_the_window_goes_on_and_off(kind: str, launches: int) -> None:
    """Handles of launches through the window are given to launches in order, and the reverse."""
    stretch = Stretch(GainModel(2, 8), launches, launches)
    stretch.judgment.predicted = 2.0
    program = slowed(apart(kind), 1)
    with Executor(2, 8, stretch=stretch) as run:
        for want in runs(kind, 3):
            equal(program.run(seed=4, window=run), want)
    assert run.counts.without_window > 0
    assert run.counts.by_workers + run.counts.by_the_caller > 0


@pytest.mark.parametrize(
    ("options", "window", "says"),
    [
        ({"backend": "jax"}, 2, "there are windows for numpy and torch on one CPU"),
        (
            {"backend": "numpy", "check": "nan"},
            2,
            "check='nan' looks at one launch after the other",
        ),
        ({"backend": "numpy"}, "two", "a window cannot be 'two'"),
        ({"backend": "numpy"}, True, "a window cannot be True"),
        ({"backend": "numpy"}, 0, "0 threads"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], window: Any, says: str) -> None:
    program = acting(World(), "first").compile(SIZES, **options)
    with pytest.raises(RecurraError, match=re.escape(says)):
        program.run(window=window)


def test_workers_have_no_window() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, _)):
        x = rc.like(rc.f32, domain=(b, t))
        x[b, 0] = rc.value(b).cast("f32")
        x[b, t + 1] = x.tanh()
        rc.output(x=x)
    program = ctx.compile({B: 4, "T": 3}, backend="numpy", workers=2)
    with pytest.raises(RecurraError, match="it runs on numpy on 2 workers"):
        program.run(window=2)


def test_what_travels_is_the_same() -> None:
    """And a run goes on from it, in a window or not."""

    def kept(window: int | None) -> tuple[dict[str, Any], list[Any]]:
        states: list[Any] = []

        def keep(step: Any) -> None:
            if step.dim == "i":
                states.append((step.hi, {n: np.array(x) for n, x in step.variables.items()}))

        program = apart("first")
        return program.run(seed=5, on_state=keep, window=window), states

    (whole, plain), (found, states) = kept(None), kept(2)
    equal(found, whole)
    assert [at for at, _ in states] == [at for at, _ in plain]
    for (_, one), (_, other) in zip(states, plain, strict=True):
        equal(one, other)
    rest = apart("first").run(seed=5, resume=plain[0])
    equal(apart("first").run(seed=5, resume=states[0], window=2), rest)


def test_the_report_shows_what_ran_beside_what(tmp_path: Path) -> None:
    apart("first").run(folder=tmp_path, window=2)
    page = (tmp_path / "report.html").read_text()
    section = page[page.index('<section id="launches">') :]
    section = section[: section.index("</section>")]
    assert "World: " in section
    assert re.search(r"region_\d+_i_t: [\d.]+ to [\d.]+, thread \d", section)
    assert re.search(r"\d+ in [\d.]+ ms, [\d.]+ ms of them \(\d+%\) side by side", section)
    assert "<p>launches through a window of 2 threads" in section
    settled(on=False, gain=0.8).run(folder=tmp_path / "off", window=2)
    assert "were at best 0.80 times as fast" in (tmp_path / "off" / "report.html").read_text()
    apart("first").run(folder=tmp_path / "plain")
    plain = (tmp_path / "plain" / "report.html").read_text()
    assert "<p>launches through" not in plain
    assert re.search(r"World: [\d.]+ to [\d.]+, environment", plain)


def test_the_share_of_time_with_two_at_once() -> None:
    def span(start: float, stop: float) -> dict[str, Any]:
        return {"statement": "s", "phase": "thread 0", "start": start, "stop": stop}

    spans = [span(0, 4), span(1, 3), span(2, 5), span(7, 8)]
    assert concurrency_text(spans) == "4 in 6 ms, 3 ms of them (50%) side by side"
    assert concurrency_text([]) == ""
