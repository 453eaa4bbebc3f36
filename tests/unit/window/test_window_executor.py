"""Threads behind a window give the program's results, tell of faults once, and always end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from random_tasks import BYTES, random_program
from recurra.window import (
    Executor,
    Segment,
    Task,
    WindowError,
    copy,
    fill,
    kernel,
    matmul,
    total,
    ufunc,
)
from recurra.window.access import segment_of
from recurra.window.gain_model import SAMPLE, TINY, GainModel
from recurra.window.history_checker import conflicts, violations
from recurra.window.list_schedule import gain
from recurra.window.native.native_window import is_available

add = ufunc(np.add)


@pytest.fixture(params=["window in Python", "native window"])
def native(request: pytest.FixtureRequest) -> bool:
    """Both windows, the native one where it can be built."""
    return request.param == "native window" and is_available()


def as_kernel(memory: np.ndarray, number: int, task: Task) -> tuple[Any, list[Any], list[Any]]:
    """A random task on real bytes: mixes what it reads into what it writes, a byte at a time."""
    reads = [memory[s.start : min(s.stop, BYTES)] for s in task.reads]
    writes = [memory[s.start : min(s.stop, BYTES)] for s in task.writes]

    @kernel(reads=lambda r, w: r, writes=lambda r, w: w)
    def mix(r: list[np.ndarray], w: list[np.ndarray]) -> None:
        seen = sum((int(x.sum()) for x in r), number)
        if number % 5 == 0:
            time.sleep(1e-5)
        for part in w:
            part[...] = np.arange(len(part)) * 7 + seen

    return mix, reads, writes


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["learn", "always", "never"])
def test_random_programs_as_in_order(policy: Any, native: bool) -> None:
    for seed in range(25):
        rng = random.Random(seed)
        program = random_program(seed, 60)
        plain, memory = np.zeros(BYTES, np.uint8), np.zeros(BYTES, np.uint8)
        for number, task in enumerate(program):
            mix, reads, writes = as_kernel(plain, number, task)
            mix(reads, writes)
        slots, threads = rng.randint(1, 64), rng.randint(1, 4)
        options = dict(queue=rng.randint(1, 9), policy=policy, native=native, record=True)
        with Executor(threads, slots, **options) as run:
            for number, task in enumerate(program):
                mix, reads, writes = as_kernel(memory, number, task)
                run.launch(mix, reads, writes)
        assert (memory == plain).all()
        assert len(run.tasks) == len(program)
        assert not violations(run.tasks, run.events, slots=slots)


def test_kernels_run_side_by_side(native: bool) -> None:
    """Each waits until the other runs: only two threads can end this."""
    there = [threading.Event(), threading.Event()]

    @kernel(reads=lambda k, out: (), writes=lambda k, out: (out,))
    def meet(k: int, out: np.ndarray) -> None:
        there[k].set()
        assert there[1 - k].wait(20)
        out[...] = k

    a, b = np.zeros(1), np.ones(1)
    with Executor(2, native=native, policy="always") as run:
        run.launch(meet, 0, a)
        run.launch(meet, 1, b)
    assert (a[0], b[0]) == (0, 1)
    assert run.counts.by_workers + run.counts.by_the_caller == 2


def test_without_workers_the_caller_runs_everything() -> None:
    a = np.zeros(4)
    with Executor(1, policy="always") as run:
        for k in range(5):
            run.launch(add, a, float(k), a)
        assert run.read(a)[0] == 10
        assert run.counts.by_the_caller == 5


@pytest.mark.parametrize("policy", ["learn", "always", "never"])
def test_ready_made_kernels(policy: Any) -> None:
    rng = np.random.default_rng(0)
    a, b, c, d = (rng.standard_normal((8, 8)) for _ in range(4))
    e, s = np.empty(8), np.empty(())
    with Executor(2, policy=policy) as run:
        run.launch(matmul, a, b, out=c)
        run.launch(ufunc(np.tanh), c, c)
        run.launch(ufunc(np.multiply), c, 2.0, d)
        run.launch(total, d, e, axis=0)
        run.launch(total, d, s)
        run.launch(copy, e, a[0])
        run.launch(fill, 3.0, a[1])
    expected = 2 * np.tanh(np.matmul(rng_a(), rng_b()))
    np.testing.assert_allclose(d, expected)
    np.testing.assert_allclose(e, expected.sum(0))
    np.testing.assert_allclose(s, expected.sum())
    np.testing.assert_allclose(a[0], expected.sum(0))
    assert (a[1] == 3).all()


def rng_a() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((8, 8))


def rng_b() -> np.ndarray:
    rng = np.random.default_rng(0)
    rng.standard_normal((8, 8))
    return rng.standard_normal((8, 8))


def test_what_is_not_known_is_a_barrier() -> None:
    a = np.zeros(2)
    seen: list[float] = []

    def look() -> None:
        seen.append(float(a.sum()))

    with Executor(3, policy="always", record=True) as run:
        run.launch(fill, 1.0, a[:1])
        run.launch(fill, 1.0, a[1:])
        run.launch(look)
        run.launch(fill, 5.0, a)
    assert seen == [2.0]
    assert {(0, 2), (1, 2), (2, 3)} <= {(e, late) for e, late, _ in conflicts(run.tasks)}


@pytest.mark.parametrize(
    ("array", "low", "size"),
    [
        (np.zeros((4, 4))[1:3, 1:3], 40, 48),
        (np.zeros(8)[::-1], 0, 64),
        (np.zeros(8)[1::3], 8, 56),
        (np.zeros((4, 0)), None, 0),
        (torch.zeros(4, 4)[1:3, 1:3], 20, 24),
        (torch.zeros(0), None, 0),
        (torch.zeros(4).expand(3, 4), 0, 16),
        (Segment(5, 6), None, 6),
    ],
)
def test_where_arrays_lie(array: Any, low: int | None, size: int) -> None:
    found = segment_of(array)
    assert found.size == size
    if low is not None:
        base = array
        while getattr(base, "base", None) is not None:
            base = base.base
        begin = base.untyped_storage().data_ptr() if torch.is_tensor(array) else base.ctypes.data
        assert found.start - begin == low


@pytest.mark.parametrize("offset", [0, 80])
def test_two_maps_of_one_file_are_one_memory(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "numbers"
    np.zeros(2000).tofile(path)
    one = np.memmap(path, np.float64, "r+", shape=(1000,))
    other = np.memmap(path, np.float64, "r+", offset=offset, shape=(1000,))
    part = np.asarray(one)[offset // 8 :][:5]
    assert segment_of(part) == segment_of(other[:5])
    assert segment_of(part) != segment_of(other[1:6])
    private = np.memmap(path, np.float64, "c", shape=(1000,))
    assert segment_of(private).start == private.__array_interface__["data"][0]

    @kernel(reads=lambda x: (x,), writes=lambda x: (x,))
    def slowly_add(x: Any) -> None:
        time.sleep(0.01)
        x += 1

    out = np.zeros(1000)
    for k in range(5):
        with Executor(threads=2, policy="always") as run:
            run.launch(slowly_add, one)
            run.launch(copy, other, out)
            assert run.read(out)[0] == k + 1


def test_what_has_no_address() -> None:
    with pytest.raises(WindowError, match="list has no address"):
        segment_of([1, 2])
    with pytest.raises(WindowError, match="tensor on meta"):
        segment_of(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("launched", [False, True])
def test_what_no_kernel_can_write_is_not_read(launched: bool) -> None:
    x = np.zeros(3)
    with Executor(threads=2) as run:
        if launched:
            run.launch(copy, x, np.zeros(3))
        with pytest.raises(WindowError, match=r"list has no address\n.*\n.*\n.*run.drain\(\)"):
            run.read([x])


def test_other_policies_are_refused() -> None:
    other: Any = "sometimes"
    with pytest.raises(
        WindowError, match="policy 'sometimes'\n  it is one of learn, always, never"
    ):
        Executor(2, policy=other)


def test_tiny_kernels_are_run_at_once() -> None:
    a = np.zeros(1)
    with Executor(2) as run:
        for _ in range(SAMPLE - 1):
            run.launch(fill, 1.0, a)
            run.drain()
        assert run.counts.inlined > SAMPLE // 2
        assert "inlined" in str(run)
        assert "fill" in run._repr_html_()


def test_the_window_is_off_where_it_cannot_pay() -> None:
    """A chain of sleeps has no parallelism."""
    a = np.zeros(1)
    with Executor(2, record=True) as run:
        for _ in range(3 * SAMPLE):
            run.launch(add, a, 1.0, a)
    assert a[0] == 3 * SAMPLE
    assert run.judgment.predicted is not None
    assert run.judgment.predicted < 1.1
    assert run.counts.without_window >= SAMPLE
    assert not violations(run.tasks, run.events)


def judged(seconds_on: float, seconds_off: float) -> GainModel:
    """Two chains of long kernels, and a clock that says how long stretches take either way."""
    judgment, now = GainModel(threads=2, slots=32), 0.0
    launched = [(Task("long", writes=(Segment(8 * (k % 2), 8),)), "long") for k in range(SAMPLE)]
    judgment.durations.record("long", 1e-3)
    for _ in range(20):
        on = judgment.next(now)
        seconds = seconds_on if on else seconds_off
        now += seconds
        judgment.record_stretch(on, seconds, launched, now)
    assert judgment.predicted == pytest.approx(2, rel=0.1)
    return judgment


def test_what_pays_stays_on_by_the_clock_not_by_prediction() -> None:
    assert judged(0.05, 0.08).next(2.0)
    assert not judged(0.08, 0.05).next(2.0)
    assert not judged(0.05, 0.05).next(2.0)


def test_what_is_learned() -> None:
    judgment = GainModel(2, 32)
    assert not judgment.is_tiny("k")
    assert not judgment.is_large("k")
    judgment.durations.record("k", TINY / 2)
    assert judgment.is_tiny("k")
    for _ in range(30):
        judgment.durations.record("k", 4 * TINY)
    assert judgment.is_large("k")
    assert judgment.durations.expect("k") == pytest.approx(4 * TINY, rel=0.01)


@pytest.mark.parametrize(
    ("chains", "threads", "slots", "expected"),
    [(1, 4, 32, 1.0), (4, 4, 32, 4.0), (4, 2, 32, 2.0), (4, 4, 1, 1.0), (8, 4, 2, 2.0)],
)
def test_gain_is_that_of_list_scheduling(
    chains: int, threads: int, slots: int, expected: float
) -> None:
    tasks = [Task("k", writes=(Segment(8 * (k % chains), 8),)) for k in range(400)]
    assert gain(tasks, [1.0] * 400, threads, 0.0, slots) == pytest.approx(expected, rel=0.03)
    slower = gain(tasks, [1.0] * 400, threads, 0.5, slots)
    assert slower <= expected / 1.4


def test_who_waits_for_a_task_holds_no_thread_up() -> None:
    chains = [Task("k", writes=(Segment(8 * (k // 10), 8),)) for k in range(40)]  # one by one
    assert gain(chains, [1.0] * 40, 2, 0.0, 32) == pytest.approx(2.0)
    assert gain(chains, [1.0] * 40, 4, 0.0, 40) == pytest.approx(4.0)


def test_what_the_program_does_itself_runs_beside_others() -> None:
    here, there = (Segment(0, 8),), (Segment(8, 8),)
    tasks = [Task("k", writes=here), Task("world", writes=there)] * 10
    own = [False, True] * 10
    assert gain(tasks, [1.0] * 20, 2, 0.0, 8, own) == pytest.approx(2.0)
    waits = [Task("k", writes=here), Task("world", reads=here)] * 10
    assert gain(waits, [1.0] * 20, 2, 0.0, 8, own) == pytest.approx(1.0)


def test_kernels_that_use_threads_are_told_how_many() -> None:
    given: list[int] = []

    @kernel(reads=lambda x: (), writes=lambda x: (x,), threaded=True)
    def wide(x: np.ndarray, threads: int = 0) -> None:
        given.append(threads)
        deadline = time.thread_time() + 4 * TINY
        while time.thread_time() < deadline:
            pass

    a = np.zeros(2)
    with Executor(3, policy="always") as run:
        run.launch(wide, a)
        run.drain()
        run.launch(wide, a)  # known to be long, and nothing else is there
        run.drain()
    assert given == [1, 3]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Executor(0), "0 threads"),
        (lambda: Executor(10**20), "100000000000000000000 threads"),
        (lambda: Executor(2, slots=65), "1 to 64"),
        (lambda: Executor(2, queue=0), "an input FIFO of 0 tasks"),
        (lambda: Executor(2, queue=2.5), "an input FIFO of 2.5 tasks"),  # pyright: ignore
        (lambda: Executor("2"), "'2' threads"),  # pyright: ignore
        (lambda: Executor(2.5), "2.5 threads"),  # pyright: ignore
        (lambda: Executor(True), "True threads"),
        (lambda: Executor(2, slots="3"), "a window of '3' slots"),  # pyright: ignore
        (lambda: Executor(2, queue=2**40), "1 to 2147483648"),
    ],
)
def test_executors_that_cannot_be(make: Callable[[], object], says: str) -> None:
    with pytest.raises(WindowError, match=says):
        make()


@pytest.mark.parametrize("policy", ["learn", "always", "never"])
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_operands_that_a_kernel_does_not_take(policy: Any, count: int) -> None:
    said = rf"kernel matmul .* {count} operands?\n.*\n  it takes \(left, right, out\): "
    with pytest.raises(WindowError, match=said), Executor(2, policy=policy) as run:
        run.launch(matmul, *[np.ones((2, 2))] * count)


def test_declarations_of_other_operands() -> None:
    @kernel(reads=lambda x: (x,), writes=lambda x, y: (y,))
    def double(x: Any, y: Any) -> None:
        y[:] = 2 * x

    said = r"kernel double is launched with 2 operands\n.*\n  its reads= takes \(x\): too many"
    with pytest.raises(WindowError, match=said), Executor(2, policy="always") as run:
        run.launch(double, np.ones(2), np.ones(2))


def test_an_error_of_a_declaration_itself_stays() -> None:
    bad = kernel(reads=lambda x: (x,), writes=lambda x: (x + None,))(lambda x: None)
    with pytest.raises(TypeError, match="NoneType"), Executor(2, policy="always") as run:
        run.launch(bad, np.ones(2))
