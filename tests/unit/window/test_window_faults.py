"""Kernels that fail, threads that die, windows in windows and in forked processes."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

from documents import ROOT, env
from recurra.window import (
    Executor,
    KernelError,
    Segment,
    WindowError,
    copy,
    fill,
    kernel,
    ufunc,
)
from recurra.window.failures import subtract
from recurra.window.history_checker import violations

add = ufunc(np.add)


@kernel(reads=lambda x, out: (x,), writes=lambda x, out: (out,))
def broken(x: np.ndarray, out: np.ndarray) -> None:
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize("policy", ["learn", "always", "never"])
def test_a_fault_surfaces_at_the_first_reader(policy: Any) -> None:
    a, b, c, d = (np.zeros(4) for _ in range(4))
    with Executor(2, policy=policy) as run:
        launched = run.launch(broken, a, b)  # the line
        run.launch(add, b, 1.0, c)  # follows from it
        run.launch(add, a, 1.0, d)  # does not
        assert run.read(d)[0] == 1
        with pytest.raises(KernelError) as error:
            run.read(c)
        run.launch(add, a, 2.0, b)  # written after all
        assert run.read(b)[0] == 2
        with pytest.raises(KernelError):
            run.read(c)  # this one was not
        run.launch(copy, b, c)
        assert run.read(c)[0] == 2
    told = str(error.value)
    assert "kernel broken failed: ZeroDivisionError: by zero" in told
    assert "launched = run.launch(broken, a, b)  # the line" in told
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert launched.error is error.value
    assert (run.counts.failed, run.counts.not_run) == (1, 1)


def test_a_fault_that_nobody_reads_is_told_at_the_end() -> None:
    a = np.zeros(2)
    run = Executor(2)
    run.launch(broken, a, a[:1])
    run.launch(broken, a[1:], a[1:])
    with pytest.raises(KernelError, match="broken") as error:
        run.close()
    assert error.value.__notes__ == ["and kernel broken failed: ZeroDivisionError: by zero"]
    with Executor(2) as again:
        again.launch(broken, a, a)
        with pytest.raises(KernelError):
            again.drain()
        again.drain()  # once


def test_the_blocks_own_error_comes_first() -> None:
    a = np.zeros(2)
    run = Executor(2)

    def block() -> None:
        with run:
            run.launch(broken, a, a)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        block()
    with pytest.raises(WindowError, match="is closed"):
        run.launch(fill, 0.0, a)


def test_half_written_memory_stays_spoiled() -> None:
    """Writing every second element does not mend what lies between."""
    a, b = np.zeros(8), np.zeros(8)
    with Executor(1) as run:
        run.launch(broken, b, a)
        run.launch(fill, 1.0, a[::2])
        with pytest.raises(KernelError):
            run.read(a)
        run.launch(fill, 1.0, a[:4])
        run.read(a[:4])
        with pytest.raises(KernelError):
            run.read(a[4:])


def test_memory_of_the_failed_is_not_given_away() -> None:
    """New arrays at the address of spoiled ones would be blamed."""
    b = np.zeros(1000)
    with Executor(1, policy="always") as run:
        run.launch(broken, b, np.zeros(1000))
        with pytest.raises(KernelError):
            run.drain()
        for _ in range(20):
            run.read(np.zeros(1000))


@pytest.mark.parametrize(
    ("part", "whole", "left"),
    [
        ((0, 10), (2, 3), [(0, 2), (5, 5)]),
        ((0, 10), (0, 10), []),
        ((5, 5), (0, 7), [(7, 3)]),
        ((5, 5), (8, 9), [(5, 3)]),
        ((5, 5), (20, 9), [(5, 5)]),
        ((5, 5), (0, 2), [(5, 5)]),
    ],
)
def test_what_is_left_of_a_segment(part: Any, whole: Any, left: list[Any]) -> None:
    assert subtract(Segment(*part), Segment(*whole)) == [Segment(*x) for x in left]


def test_arguments_are_held_until_their_kernel_ends() -> None:
    out = np.zeros(1000)
    with Executor(2, policy="always") as run:
        for k in range(200):
            run.launch(add, np.full(1000, float(k)), out, out)  # nobody else holds the first
        assert run.read(out)[0] == sum(range(200))

        class Array(np.ndarray):
            pass

        array = np.zeros(3).view(Array)
        gone = weakref.ref(array)
        launch = run.launch(copy, array, out[:3])
        del array
        run.drain()
        gc.collect()
        assert launch.done
        assert gone() is None


def test_interrupts_reach_the_caller() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    a = np.zeros(1)
    run = Executor(1, policy="always")
    run.launch(interrupted)
    run.launch(fill, 1.0, a)
    with pytest.raises(KeyboardInterrupt):
        run.drain()
    run.stop()
    assert run.counts.failed == 1


def alive() -> list[threading.Thread]:
    """The threads that have begun; those that are being started have no number yet."""
    return [t for t in threading.enumerate() if t.ident]


def kill(thread: threading.Thread) -> bool:
    """Raises SystemExit in it, wherever it is; False if it has ended already."""
    raises = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return raises(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)) == 1


# Python ignores a SystemExit of a thread, wherever in it; pytest warns of one in Python's own part.
@pytest.mark.filterwarnings("ignore:Exception in thread recurra-window")
def test_a_dead_worker_is_replaced() -> None:
    a = np.zeros(64)
    before = set(threading.enumerate())  # and those that were killed already
    with Executor(3, policy="always") as run:
        for _ in range(4):
            for k in range(64):
                run.launch(add, a[k : k + 1], 1.0, a[k : k + 1])
            run.drain()
            while not (
                workers := [t for t in threading.enumerate() if t.ident and t not in before]
            ):
                time.sleep(1e-3)  # the next one is being started
            before.add(workers[0])
            assert kill(workers[0])
        for k in range(64):
            run.launch(add, a[k : k + 1], 1.0, a[k : k + 1])
    assert (a == 5).all()
    assert run.counts.workers_replaced >= 1


# windows in windows, threads, processes


def test_nested_windows_are_one() -> None:
    a = np.zeros(1)
    slow = kernel(reads=lambda x: (x,), writes=lambda x: (x,))(
        lambda x: (time.sleep(0.02), x.fill(1))
    )
    with Executor(2, policy="always") as outer:
        outer.launch(slow, a)
        with Executor(2, policy="always") as inner:
            inner.launch(add, a, 1.0, a)  # follows what the outer one has in flight
        assert a[0] == 2  # the inner block has ended
        with pytest.raises(WindowError, match="closed"):
            inner.launch(fill, 0.0, a)
        outer.launch(add, a, 1.0, a)
    assert a[0] == 3
    assert outer.counts.by_workers + outer.counts.by_the_caller == 3


def test_kernels_that_launch_run_at_once() -> None:
    a = np.zeros(1)
    told: list[str] = []
    with Executor(2, policy="always") as run:

        @kernel(reads=lambda x: (x,), writes=lambda x: (x,))
        def outer(x: np.ndarray) -> None:
            run.launch(fill, 4.0, x)
            assert run.read(x)[0] == 4
            try:
                run.drain()
            except WindowError as error:
                told.append(error.what)

        run.launch(outer, a)
        assert run.read(a)[0] == 4
    assert told == ["a kernel waits for the end of its own window"]


@pytest.mark.parametrize("policy", ["learn", "always", "never"])
def test_several_threads_launch_into_one_window(policy: Any) -> None:
    counters = np.zeros((4, 8))
    shared = np.zeros(8)
    with Executor(3, policy=policy, record=True) as run:

        def work(k: int) -> None:
            for _ in range(100):
                run.launch(add, counters[k], 1.0, counters[k])
                run.launch(add, shared, 1.0, shared)
                if _ % 10 == 0:
                    run.wait(counters[k])

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (counters == 100).all()
    assert (shared == 400).all()
    assert not violations(run.tasks, run.events)


def script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env(),
        cwd=ROOT,
    )


PRELUDE = """
import os, sys, time
import numpy as np
from recurra import window
a = np.zeros(4)
slow = window.kernel(reads=lambda x: (x,), writes=lambda x: (x,))(
    lambda x: (time.sleep(0.01), np.add(x, 1, out=x)))
"""


def test_the_interpreter_ends_with_work_in_flight() -> None:
    done = script(
        "run = window.Executor(2, policy='always')\n"
        "import atexit; atexit.register(lambda: None)\n"
        "for _ in range(20): run.launch(slow, a)\n"
        "run.launch(lambda: print(a[0]))\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "20.0\n", "")


def test_a_fault_in_flight_at_the_end_is_told() -> None:
    done = script("run = window.Executor(2)\nrun.launch(lambda: 1 // 0)\n")
    assert done.returncode == 0
    assert "kernel <lambda> failed: ZeroDivisionError" in done.stderr


def test_fork_finds_nothing_in_flight() -> None:
    done = script(
        "run = window.Executor(2, policy='always')\n"
        "for _ in range(10): run.launch(slow, a)\n"
        "child = os.fork()\n"
        "assert a[0] == 10, a\n"
        "for _ in range(10): run.launch(slow, a)\n"
        "run.read(a)\n"
        "assert a[0] == 20, a\n"
        "run.close()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
        "else: os._exit(0)\n"
        "print('both')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "both\n", "")


def test_fork_inside_a_kernel() -> None:
    """The child goes on inside the kernel: launches run at once, there is nothing to wait for."""
    done = script(
        "run = window.Executor(2, policy='always')\n"
        "def forks():\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "        return\n"
        "    run.launch(slow, a)\n"
        "    try: run.drain()\n"
        "    except window.WindowError as e: os._exit(0 if a[0] == 1 else 3)\n"
        "    os._exit(4)\n"
        "run.launch(forks)\n"
        "run.close()\n"
        "print('parent')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent\n", "")


def test_an_interrupt_while_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not hidden by a thread that cannot be joined yet."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        thread._started.wait = lambda timeout=None: 1 / 0  # type: ignore[attr-defined]
        try:
            start(thread)
        except ZeroDivisionError:
            raise KeyboardInterrupt from None

    x = np.ones(4)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Executor(threads=2, policy="always") as run:
        run.launch(add, x, 1.0, x)
    monkeypatch.undo()
    with Executor(threads=2, policy="always") as run:
        run.launch(add, x, 1.0, x)
    assert x.tolist() in ([2.0] * 4, [3.0] * 4)
