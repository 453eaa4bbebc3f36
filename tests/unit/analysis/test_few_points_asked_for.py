"""Where few points of a recurrence are asked for, it runs as where all of them are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS, interpreted

LENGTHS = (2, 3, 4, 5, 6, 7)
Step = Callable[[Any, Any, Any, Any], Any]  # of x, y, t and T


def halved(x: Any, y: Any, t: Any, T: Any) -> Any:
    return rc.where(t < 5, y[t - 1] * 0.5, y[t - 1] * 2.0)


def never_the_other(x: Any, y: Any, t: Any, T: Any) -> Any:
    return rc.where(t < 100, y[t - 1], y[t - 1] * 2.0)


def last_apart(x: Any, y: Any, t: Any, T: Any) -> Any:
    return rc.where(t == T - 1, y[t - 1], y[t - 1] * 2.0)


def by_turns(x: Any, y: Any, t: Any, T: Any) -> Any:
    return rc.where(t % 3 == 0, y[t - 1].sin(), y[t - 1].cos() * 0.5)


def unread(x: Any, y: Any, t: Any, T: Any) -> Any:
    return y[t - 1] + rc.where(t >= 1, x, y[t - 1])


def within_choices(x: Any, y: Any, t: Any, T: Any) -> Any:
    a = rc.where(t < 4, x, y[t - 1])
    few = rc.where(t < 4, y[t - 1] + 1.0, y[t - 1] * 2.0)
    return rc.where(t == T - 2, a, rc.where(t % 2 == 1, few, y[t - 1] * 3.0))


def by_two_choices(x: Any, y: Any, t: Any, T: Any) -> Any:
    odd = rc.where(t == T - 1, y[t - 1] - 1.0, x[rc.max(t - 2, 0)] * 0.5)
    return rc.where(t % 2 != 0, odd, rc.where(t >= 2, x * 0.9, y[t - 1] * 0.9))


STEPS: list[Step] = [
    halved, never_the_other, last_apart, by_turns, unread, within_choices, by_two_choices,
]  # fmt: skip
ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "last": lambda y, T: y[T - 1],
    "second": lambda y, T: y[1],
    "last two": lambda y, T: y[rc.max(T - 2, 0) : T].sum(),
}


def program(step: Step, asked: str | None) -> tuple[rc.Context, Any]:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.value(t) * 0.3 + 0.1
        y = rc.like(rc.f32, (t,))
        y[0] = 1.0
        y[t] = step(x, y, t, T)
        rc.output(y=y if asked is None else ASKED[asked](y, T))
    return ctx, T


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("asked", ASKED)
def test_they_are_those_of_all_points(step: Step, asked: str) -> None:
    for n in LENGTHS:
        ctx, T = program(step, None)
        every = ctx.run({T: n}, backend="numpy")["y"]
        want = {"last": every[-1], "second": every[1], "last two": every[-2:].sum()}[asked]
        ctx, T = program(step, asked)
        np.testing.assert_allclose(ctx.run({T: n}, backend="numpy")["y"], want, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_gradients_of_a_clamped_recurrence_at_one_point(backend: str, lag: int) -> None:
    n, at = 5, 2
    x = torch.arange(n, dtype=torch.float32, requires_grad=True)
    y = [x[0]]
    for t in range(1, n):
        y.append(y[max(t - lag, 0)] * 0.5 + x[t])
    y[at].backward()
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        mine = rc.like(rc.f32, (t,))
        mine[t] = rc.value(t)
        z = rc.like(rc.f32, (t,))
        z[0] = mine
        z[t] = z[rc.max(t - lag, 0)] * 0.5 + mine
        z[at].backward(wrt=[mine])
        rc.output(slope=mine.grad)
    assert x.grad is not None
    for slope in (interpreted(ctx, {T: n})["slope"], ctx.run({T: n}, backend=backend)["slope"]):
        np.testing.assert_allclose(slope, x.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("given", ["value", "input"])
def test_first_points_are_given_as_a_range(backend: str, given: str) -> None:
    for n in (3, 5, 6):
        ctx = rc.Context(dims="t")
        with ctx as (t, T):
            x = rc.value(t) if given == "value" else rc.input(rc.f32, (t,), name="x")
            y = rc.like(rc.f32, (t,))
            y[0:2] = x[0:2]
            y[t] = y[t - 2] * 0.5
            rc.output(last=y[T - 1], total=y[0:T].sum())
        want = [0.0, 1.0]
        for k in range(2, n):
            want.append(want[k - 2] * 0.5)
        inputs = None if given == "value" else {"x": np.arange(n, dtype=np.float32)}
        found = ctx.run({T: n}, backend=backend, inputs=inputs)
        assert found["last"] == want[-1]
        assert found["total"] == sum(want)


def by_twos(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[0] = x[0]
    y[t] = y[t - 2] * 0.5
    return y[0:T:2].sum()


def from_the_fourth(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[4] = x[4]
    y[t] = y[t - 1] * 0.5
    return y[4:T].sum()


def from_a_condition(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[t] = rc.where(t >= 3, x, y[t - 1])
    return y[T - 1]


def from_the_end(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[T - 4] = x[T - 4]
    y[t] = y[t - 1] * 0.5
    return y[T - 1]


def from_every_fourth(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[t % 4 == 3, t] = x
    y[t] = y[t - 1] * 0.5
    return y[3:T].sum()


def backward_from_the_third(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[3] = x[3]
    y[t] = y[t + 1] * 0.5
    return y[0]


def by_threes(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[t] = rc.where(t % 3 == 0, x, y[t - 3])
    return y[0:T:3].sum()


def of_the_last(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[t >= T - 3, t] = x
    y[t] = y[t - 2] * 0.5 + y[rc.max(t - 3, 0)]
    return y[T - 1]


def of_one_that_reads_itself(x: Any, y: Any, t: Any, T: Any) -> Any:
    y[t] = y[rc.min(t - 1, 3)]
    return rc.where(t >= T - 1, y[0 : t + 1].sum(), x)[0]


WITHOUT_BASE = [
    by_twos, from_the_fourth, from_a_condition, from_the_end, from_every_fourth,
    backward_from_the_third, by_threes, of_the_last, of_one_that_reads_itself,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", WITHOUT_BASE)
def test_points_without_a_base_are_not_asked_for(
    write: Callable[[Any, Any, Any, Any], Any], backend: str
) -> None:
    """Refused as not defined there: what is asked of a recurrence was known by conditions alone."""
    for n in (6, 7, 8, 12):
        ctx = rc.Context(dims="t")
        with ctx as (t, T):
            x, y = rc.input(rc.f32, (t,), name="x"), rc.like(rc.f32, (t,))
            asked = write(x, y, t, T)
            asked.backward(wrt=[x])
            rc.output(asked=asked, slope=x.grad)
        given = {"x": np.arange(1, n + 1, dtype=np.float32)}
        want = interpreted(ctx, {T: n}, given)
        for name, found in ctx.run({T: n}, backend=backend, inputs=given).items():
            np.testing.assert_allclose(found, want[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_last_point_that_no_round_asks_for_may_be_left_out(backend: str) -> None:
    """More equations wait for each other than of which all steps at once are found."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((k, rounds), (t, steps)):
        u, push = rc.like(rc.f32, (k, t)), rc.like(rc.f32, (k, t))
        u[0, t] = 1.0
        u[k, t] = u[k - 1, t] + push[k - 1, t]
        x = rc.like(rc.f32, (k, t))
        x[k, 0] = 0.5
        x[k, t + 1] = x + 0.1 * u
        value = x[k, t + 1]
        for _ in range(30):
            value = value.sin()
        push[k, t] = value
        rc.output(x=x[rounds - 1, t])
    K, T = 5, 6
    want, us = np.zeros(T, "f4"), np.ones(T, "f4")
    for _ in range(K):
        want[0] = 0.5
        for now in range(T - 1):
            want[now + 1] = want[now] + np.float32(0.1) * us[now]
        value = want[1:]
        for _ in range(30):
            value = np.sin(value)
        us[:-1] += value
    found = ctx.compile({rounds: K, steps: T}, backend=backend).run()
    np.testing.assert_allclose(found["x"], want, rtol=1e-5)
