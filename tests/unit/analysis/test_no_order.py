"""Programs without an order: what is told of calls of the host, and that the way out works."""

import numpy as np
import pytest

import recurra as rc
from recurra.errors import NoSuchName, ScheduleError
from recurra.reference import interpreter


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


def test_the_interpreter_tells_a_point_that_waits_for_itself() -> None:
    """It has no state of calls to wait for, so the order that it tries goes round."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        y = rc.like(rc.f32, (t,))
        y[T - 1] = 1.0
        y[t] = rc.call(lambda a: np.float32(a), rc.f32, y[t + 1])
        rc.output(y=y)
    with pytest.raises(ScheduleError, match="waits for itself"):
        interpreter.run(ctx.graph, {"T": 3})


def test_a_program_that_is_called_by_another_name() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        rc.output(y=rc.value(t))
    program = ctx.compile({T: 3}, backend="numpy")
    with pytest.raises(NoSuchName, match="a compiled program has no 'execute'") as told:
        program.execute()
    assert "program.run()" in told.value.hint
    assert not hasattr(program, "execute")


def middle(n: int, *, gradient: bool) -> set[str]:
    """Every point reads one in the middle, whose cotangent waits for those of all others."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.input(rc.f32, (t,), name="x")
        y = rc.like(rc.f32, (t,))
        y[T - 2] = x[0]
        y[t] = x[T - 1 - t] + y[T - 2] * (t < 3)
        if gradient:
            y.square()[0:T].sum().backward(wrt=[x])
            rc.output(g=x.grad)
        rc.output(y=y)
    return set(ctx.compile({T: n}, backend="numpy").inputs)


def test_a_gradient_without_an_order_is_told_by_its_line() -> None:
    """Equations that the user has not written, and running totals, are not named."""
    assert middle(5, gradient=False) == {"x"}
    with pytest.raises(ScheduleError, match="what this line asks for has no order") as told:
        middle(5, gradient=True)
    text = str(told.value)
    assert "backward(wrt=[x])" in text
    assert "no direction of t carries it" in text
    assert "guarded" not in text


def test_what_is_declared_and_defined_in_one_line_has_a_name() -> None:
    """It is no choice, though all of its branches are of the line that declares it."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        y = rc.like(rc.f32, (t,)); y[t > 0] = y[t - 1]; rc.output(y=y)  # fmt: skip  # noqa: E702
    with pytest.raises(rc.RecurraError, match="y is not defined at every point") as told:
        ctx.compile({T: 3})
    assert "y[0] = ..." in str(told.value)
