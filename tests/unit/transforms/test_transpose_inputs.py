"""Inputs that loops read across are turned, and no answer changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS, interpreted

ROWS, STEPS = 64, 7


def forward(x: Any, b: Any, t: Any, T: Any) -> Any:
    s = rc.like(rc.f32, (b, t))
    s[b, 0] = x
    s[b, t] = (0.5 * s[b, t - 1] + x[b, t - 1] - x).tanh()
    return s


def backward(x: Any, b: Any, t: Any, T: Any) -> Any:
    s = rc.like(rc.f32, (b, t))
    s[b, T - 1] = x
    s[b, t] = (0.5 * s[b, t + 1] + x[b, t + 1]).tanh()
    return s


def other_points(x: Any, b: Any, t: Any, T: Any) -> Any:
    s = rc.like(rc.f32, (b, t))
    s[b, 0] = x[b, T - 1]
    s[b, t] = (s[b, t - 1] * x[b, T - 1 - t] + x[b, rc.min(2 * t, T - 1)]).tanh()
    return s


def windows(x: Any, b: Any, t: Any, T: Any) -> Any:
    s = rc.like(rc.f32, (b, t))
    s[b, 0] = x
    s[b, t] = (s[b, t - 1] + x[b, rc.max(t - 2, 0) : t + 1].sum()).tanh() + x
    return s


def rows_turned_too(x: Any, b: Any, t: Any, T: Any) -> Any:
    s = rc.like(rc.f32, (b, t))
    s[b, 0] = x[ROWS - 1 - b, t]
    s[b, t] = (s[b, t - 1] + x[ROWS - 1 - b, t]).tanh()
    return s


@pytest.mark.parametrize("write", [forward, backward, other_points, windows, rows_turned_too])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("hasty_xla")
def test_answers_are_those_of_the_interpreter(write: Callable[..., Any], backend: str) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32, (b, t), name="x")
        s = write(x, b, t, T)
        loss = s[0:B, 0:T].square().mean()
        rc.output(s=s, loss=loss)
    bounds = {B: ROWS, T: STEPS}
    given = {"x": np.random.default_rng(0).standard_normal((ROWS, STEPS), "f4")}
    program = ctx.compile(bounds, backend=backend)
    found, right = program.run(inputs=given), interpreted(ctx, bounds, given)
    for name in right:
        np.testing.assert_allclose(found[name], right[name], rtol=2e-5, atol=1e-6)
    assert any("x: turned" in d for d in program.compiled.stages.decisions)


@pytest.mark.parametrize("options", [{"workers": 2}, {"memory": "1MB"}, {"tile_rows": 16}])
def test_other_options(options: dict[str, Any]) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        s = forward(rc.input(rc.f32, (b, t), name="x"), b, t, T)
        rc.output(s=s)
    bounds = {B: ROWS, T: STEPS}
    given = {"x": np.random.default_rng(0).standard_normal((ROWS, STEPS), "f4")}
    found = ctx.compile(bounds, backend="numpy", **options).run(inputs=given)
    right = interpreted(ctx, bounds, given)
    np.testing.assert_allclose(found["s"], right["s"], rtol=2e-5, atol=1e-6)
