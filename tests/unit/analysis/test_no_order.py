"""Programs without an order: what is told of calls of the host, and that the way out works."""

import numpy as np
import pytest

import recurra as rc
from recurra.errors import ScheduleError


def halves(given: np.ndarray, **how: bool) -> np.ndarray:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.input(rc.f32, (t,), name="x")
        y = rc.like(rc.f32, (t,))

        def half(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.float32(a * 0.5 + b)

        y[T - 1] = x
        y[t] = rc.call(half, rc.f32, y[t + 1], x, **how)
        rc.output(y=y)
    return ctx.compile({T: 4}, backend="numpy").run(inputs={"x": given})["y"]


def test_a_call_backward_in_time():
    """Calls that may keep a state are made from the first point on."""
    given = np.arange(4, dtype=np.float32)
    with pytest.raises(ScheduleError, match="half may keep a state") as told:
        halves(given)
    assert "pure=True" in str(told.value)
    want = given.copy()
    for t in (2, 1, 0):
        want[t] = want[t + 1] * 0.5 + given[t]
    np.testing.assert_array_equal(halves(given, pure=True), want)
