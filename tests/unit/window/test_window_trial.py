"""Whether the window pays: by the clock, with clocks that are made up."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from built import FOLDER
from recurra.window import Executor, thread_pool
from recurra.window import timed_stretches as stretches
from recurra.window.ab_trial import LOSS, Trial
from recurra.window.gain_model import GainModel
from recurra.window.native.native_build import build
from recurra.window.native.native_window import load
from recurra.window.timed_stretches import Stretch
from recurra.window.wrapper import Wrapper


def run(trial: Trial, until: float, on: float, off: float, now: float = 0.0) -> tuple[float, ...]:
    """Stretches of work 1 that take `on` or `off` seconds; (now, seconds on, seconds off)."""
    spent = {True: 0.0, False: 0.0}
    while now < until:
        way = trial.next(now)
        seconds = on if way else off
        now += seconds
        spent[way] += seconds
        trial.done(way, seconds, 1.0, now)
    return now, spent[True], spent[False]


def test_the_faster_way_is_taken_nearly_always() -> None:
    _, on, off = run(Trial(), 1000.0, 0.01, 0.02)
    assert off < 0.03 * (on + off)
    _, on, off = run(Trial(), 1000.0, 0.02, 0.01)
    assert on < 0.01 * (on + off)


def test_what_trying_loses_is_bounded() -> None:
    _, on, _ = run(Trial(), 1000.0, 0.1, 0.01)
    assert on * 0.9 < 1000.0 / LOSS


def test_the_window_must_be_worth_it() -> None:
    now, _, _ = run(Trial(), 100.0, 0.0099, 0.01)
    assert not Trial().next(0.0)
    trial = Trial()
    run(trial, 0.5, 0.0099, 0.01)
    assert not trial.next(now)


def test_the_machine_changes() -> None:
    trial = Trial()
    now, _, _ = run(trial, 10.0, 0.01, 0.02)
    _, on, off = run(trial, now + 100.0, 0.03, 0.02, now)
    assert on < 0.05 * (on + off)  # noticed at once
    trial = Trial()
    now, _, _ = run(trial, 10.0, 0.02, 0.01)
    _, on, off = run(trial, now + 1000.0, 0.005, 0.01, now)
    assert on > 0.8 * (on + off)  # noticed when it is looked at again


def test_one_lucky_stretch_is_not_enough() -> None:
    trial, now = Trial(), 0.0
    for k in range(40):
        way = trial.next(now)
        seconds = 0.008 if way and k == 3 else 0.0105 if way else 0.01
        now += seconds
        trial.done(way, seconds, 1.0, now)
    assert not trial.examining
    assert not trial.next(now)


def test_what_the_program_does_itself_counts_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is asked between launches: in order is as much work as through the window."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: now[0])
    monkeypatch.setattr(thread_pool, "time", clock)
    monkeypatch.setattr(stretches, "time", clock)

    def takes(seconds: float) -> None:
        now[0] += seconds

    launches = 4
    judgment = GainModel(1, 8)
    judgment.predicted = 2.0  # a trial decides
    stretch = Stretch(judgment, launches, launches, since=0.0)
    with Executor(1, 8, native=False, stretch=stretch) as run:
        while judgment.trial.examining and now[0] < 1000.0:
            since = now[0]
            takes(3.0)
            run.called("the world", since)
            for _ in range(launches):
                run.launch(Wrapper("kernel", takes, lambda s: (), lambda s: (), kind="k"), 0.5)
            run.drain()
        assert judgment.trial.gain == pytest.approx(1.0)
        assert run.runs_in_order


@pytest.fixture(scope="module")
def native() -> Any:
    build(FOLDER)
    return load(FOLDER)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("seed", range(30))
def test_native_and_python_decide_alike(native: Any, seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs, now = Trial(), native.Trial(), 0.0
    for _ in range(600):
        way = theirs.next(now)
        assert ours.next(now) == way
        if rng.random() < 0.01:
            ours.refuse(now)
            theirs.refuse(now)
        seconds = rng.choice((0.01, 0.02)) * (rng.choice((0.5, 1.0, 1.5)) if way else 1.0)
        seconds *= rng.lognormvariate(0, 0.3)
        now += seconds * rng.choice((1, 1, 50))
        work = rng.uniform(0.5, 2.0)
        ours.done(way, seconds, work, now)
        theirs.done(way, seconds, work, now)
        assert ours.examining == theirs.examining()
        assert ours.until == pytest.approx(theirs.until(), rel=1e-12)  # sums are rounded elsewhere
        assert ours.gain == pytest.approx(theirs.gain())
