"""Turns: one thread at a time, again by the same, and nobody sleeps for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from recurra.window import Executor, WindowError, fill, kernel
from recurra.window.token_lock import TokenLock


def together(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_one_thread_at_a_time() -> None:
    lock, inside, most = TokenLock(), [0], [0]

    def alone(k: int) -> None:
        inside[0] += 1
        if k % 30 == 0:
            time.sleep(1e-4)  # another thread runs meanwhile
        most[0] = max(most[0], inside[0])
        inside[0] -= 1

    def work() -> None:
        for k in range(300):
            lock.run(lambda: alone(k))  # noqa: B023 it is called at once

    together(4, work)
    assert most == [1]
    assert not lock.owner
    assert lock.waiting == 0


def test_again_by_who_has_it() -> None:
    lock = TokenLock()

    def work() -> None:
        assert lock.is_mine()
        lock.run(lambda: None)
        assert lock.is_mine()
        seen: list[bool] = []
        together(1, lambda: seen.append(lock.is_mine()))
        assert seen == [False]

    lock.run(work)
    assert not lock.is_mine()
    assert not lock.owner


def test_it_is_given_back_when_something_is_raised() -> None:
    lock, seen = TokenLock(), list[bool]()

    def fails() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        lock.run(fails)
    together(1, lambda: seen.append(lock.run(lock.is_mine)))
    assert seen == [True]


def off(threads: int = 2) -> Executor:
    """An executor of which it is known that it does not pay."""
    run = Executor(threads)
    judgment = run.judgment
    judgment.predicted = 1.0
    judgment.trial.refuse(time.perf_counter())
    judgment.trial.until = float("inf")
    run._stretch.end(healthy=True)  # pyright: ignore[reportPrivateUsage]
    assert run.runs_in_order
    return run


def test_launches_of_several_threads_run_one_by_one_while_it_is_off() -> None:
    inside, most, ran = [0], [0], [0]

    @kernel(reads=lambda: (), writes=lambda: ())
    def alone() -> None:
        inside[0] += 1
        ran[0] += 1
        if ran[0] % 50 == 0:
            time.sleep(1e-4)
        most[0] = max(most[0], inside[0])
        inside[0] -= 1

    with off() as run:

        def work() -> None:
            for _ in range(500):
                run.launch(alone)
            run.drain()

        together(4, work)
        assert (most, ran) == ([1], [2000])
        assert run.counts.without_window == 2000


def test_a_kernel_that_launches_and_one_that_waits_for_itself_while_it_is_off() -> None:
    ran: list[str] = []

    @kernel(reads=lambda: (), writes=lambda: ())
    def outer() -> None:
        run.launch(inner)
        ran.append("outer")
        with pytest.raises(WindowError, match="waits for the end of its own window"):
            run.drain()

    @kernel(reads=lambda: (), writes=lambda: ())
    def inner() -> None:
        ran.append("inner")

    with off() as run:
        run.launch(outer)
        run.launch(inner)
    assert ran == ["inner", "outer", "inner"]


def test_a_kernel_with_threads_of_its_own_is_told_how_many_while_it_is_off() -> None:
    told: list[int] = []

    @kernel(reads=lambda: (), writes=lambda: (), threaded=True)
    def wide(threads: int) -> None:
        told.append(threads)

    with off(3) as run:
        run.launch(wide)
    assert told == [3]


def test_a_block_inside_of_one_that_is_off_is_a_part_of_it() -> None:
    import numpy as np

    x = np.zeros(4)
    with off() as outer:
        with off() as inner:
            inner.launch(fill, 3.0, x)
        assert inner.counts.without_window == 0
        assert outer.counts.without_window == 1
    assert x.tolist() == [3.0] * 4
