"""Ctrl-C in an executor, at any moment: nothing hangs, and nothing is wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from documents import ROOT, env

PROGRAM = """
import faulthandler, random, signal, sys, threading
import numpy as np
from contextlib import suppress
from recurra.window import Executor, KernelError, WindowError, fill, kernel
from recurra.window.native.native_window import is_available

policy, native, rounds = sys.argv[1], sys.argv[2] == "native" and is_available(), int(sys.argv[3])
dice = random.Random(policy)
armed = False  # a signal that another thread takes may come after its timer was stopped

def interrupt(*_):
    if armed:
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)

@kernel(reads=lambda x, y: (x, y), writes=lambda x, y: (y,))
def accumulate(x, y):
    y += x

def program(run, x, y):
    for k in range(60):
        run.launch(accumulate, x[k % 4], y[k % 3])
        if k % 20 == 19:
            run.wait(y[k % 3])

def beside(run):
    mine = np.zeros(4)
    with suppress(WindowError):  # closed meanwhile
        for _ in range(40):
            run.launch(accumulate, np.ones(4), mine)
            run.wait(mine)

faulthandler.dump_traceback_later(90)
interrupted = 0
for _ in range(rounds):
    x, y, run, other, whole = np.ones((4, 4)), np.zeros((3, 4)), None, None, False
    threads, slots = 1 + dice.randrange(3), 1 + dice.randrange(6)
    run = Executor(threads, slots, queue=4, policy=policy, native=native)
    if dice.random() < 0.3:
        other = threading.Thread(target=beside, args=(run,), daemon=True)
        other.start()
    try:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + dice.random() * 0.006)
            with run:
                program(run, x, y)
            whole = True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            armed = False
    except KeyboardInterrupt:
        interrupted += 1
    except KernelError as error:  # who should run a kernel was stopped, and the block went on
        assert "KeyboardInterrupt" in str(error), error
        interrupted += 1
    if not run.closed:  # it came where the block begins or ends: its threads are there still
        with Executor(2, policy=policy) as inner:
            inner.launch(fill, 1.0, x)
        assert (x == 1).all()
        run.__exit__(KeyboardInterrupt)
    assert run.closed
    assert not whole or (y == 20).all(), y
    if other is not None:
        other.join(20)
        assert not other.is_alive(), "a thread hangs"
    with Executor(2, policy=policy) as after:
        after.launch(fill, 3.0, x)
    assert (x == 3).all() and after.closed
signal.setitimer(signal.ITIMER_REAL, 0)
assert interrupted > rounds // 20, interrupted
print("ended", interrupted)
"""


def ended(policy: str, window: str, rounds: int) -> Any:
    command = [sys.executable, "-c", PROGRAM, policy, window, str(rounds)]
    return subprocess.run(
        command, cwd=ROOT, env=env(), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("window", ["in Python", "native"])
@pytest.mark.parametrize("policy", ["learn", "always", "never"])
def test_an_executor_that_is_interrupted_at_any_moment_ends(policy: str, window: str) -> None:
    done = ended(policy, window, 400)
    assert "ended" in done.stdout, done.stderr[-3000:]
    assert not done.returncode
