"""Ctrl-C where a block of an executor ends, before any of its functions: nothing is left open."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from recurra import window
from recurra.window import Executor


@window.kernel(reads=lambda x, y: (x,), writes=lambda x, y: (y,))
def increment(x: Any, y: Any) -> None:
    np.add(x, 1, out=y)


def interrupted_at(call: int) -> tuple[Executor, bool]:
    """An executor that Ctrl-C meets at the first instruction of a function; false: there is none.

    Python looks for signals there.
    """
    armed, calls = False, 0

    def trace(frame: FrameType, event: str, _: object) -> None:
        nonlocal armed, calls
        if armed and event == "call" and "recurra" in frame.f_code.co_filename:
            calls += 1
            if calls == call:
                armed = False
                raise KeyboardInterrupt

    x, y = np.zeros(100), np.zeros(100)
    run, before = Executor(threads=2, policy="always"), sys.gettrace()
    try:
        sys.settrace(trace)
        with run:
            for _ in range(3):
                run.launch(increment, x, y)
            armed = True
    except KeyboardInterrupt:
        return run, True
    finally:
        sys.settrace(before)
    return run, False


def test_a_block_is_over_wherever_ctrl_c_meets_its_end() -> None:
    call, met = 0, True
    while met and call < 200:
        call += 1
        old, met = interrupted_at(call)
        new, x, y = Executor(threads=2), np.zeros(4), np.zeros(4)
        with new:
            new.launch(increment, x, y)
            assert new.read(y).tolist() == [1] * 4
            assert old.closed
        assert new.closed, "it is no part of the block that was interrupted"
        with pytest.raises(window.WindowError):
            old.launch(increment, x, y)
    assert not met
    assert call > 5


def test_asking_for_the_end_does_not_end_a_block() -> None:
    x, y = np.zeros(4), np.zeros(4)
    outer = Executor(native=False)
    assert hasattr(outer, "__exit__")
    with outer:
        assert hasattr(outer, "__exit__")
        with Executor(native=False) as inner:
            inner.launch(increment, x, y)
        assert not outer.closed
        assert outer.read(y).tolist() == [1] * 4
    assert outer.closed
    with contextlib.ExitStack() as stack:
        stacked = stack.enter_context(Executor(native=False))
        with Executor(native=False):
            pass
        assert not stacked.closed
    assert stacked.closed
    by_hand = Executor(native=False)
    by_hand.__enter__()
    with Executor(native=False):
        pass
    assert not by_hand.closed
    by_hand.__exit__(None, None, None)
    assert by_hand.closed
