"""Reductions over windows of a fixed length are sums of whole arrays, with the values of a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS

N, LENGTH = 2, 11
WINDOWS: dict[str, tuple[Callable[..., Any], Callable[[int], slice]]] = {
    "last 5": (lambda t, T: slice(rc.max(t - 4, 0), t + 1), lambda t: slice(max(t - 4, 0), t + 1)),
    "next 6": (lambda t, T: slice(t, rc.min(t + 6, T)), lambda t: slice(t, t + 6)),
    "next but one": (lambda t, T: slice(t + 1, rc.min(t + 4, T)), lambda t: slice(t + 1, t + 4)),
    "before": (lambda t, T: slice(rc.max(t - 3, 0), t), lambda t: slice(max(t - 3, 0), t)),
    "around": (
        lambda t, T: slice(rc.max(t - 2, 0), rc.min(t + 4, T)),
        lambda t: slice(max(t - 2, 0), t + 4),
    ),
    "longer than all": (
        lambda t, T: slice(rc.max(t - 40, 0), t + 1),
        lambda t: slice(0, t + 1),
    ),
}
FOLDS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "sum": (lambda x: x.sum(), np.sum),
    "max": (lambda x: x.max(), lambda x: np.max(x, initial=-np.inf)),
    "min": (lambda x: x.min(), lambda x: np.min(x, initial=np.inf)),
    "prod": (lambda x: x.prod(), np.prod),
    "any": (lambda x: (x > 1.0).any(), lambda x: np.any(x > 1.0)),
}
EMPTY = ("next but one", "before")  # at one end of the rows: of nothing there is no maximum


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_values(window: str, fold: str, backend: str) -> None:
    if window in EMPTY and fold in ("max", "min"):
        fold = "sum"
    (written, by_hand), (ours, theirs) = WINDOWS[window], FOLDS[fold]
    x = np.random.default_rng(1).standard_normal((N, LENGTH), "f4")
    program = compiled(lambda x, b, t, T: ours(x[b, written(t, T)]), backend)
    assert "for t" not in program.schedule_text.partition("x\n")[2]  # but that of the input
    want = [[theirs(x[b, by_hand(t)]) for t in range(LENGTH)] for b in range(N)]
    np.testing.assert_allclose(program.run(inputs={"x": x})["y"], want, rtol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steps", [2, 3, 8, 30])
def test_returns_of_some_steps(steps: int, backend: str) -> None:
    """Rewards of later steps count less, also where there are fewer."""
    x = np.random.default_rng(2).standard_normal((N, LENGTH), "f4")
    program = compiled(
        lambda r, b, t, T: r[b, t : rc.min(t + steps, T)].discounted_sum(0.9), backend
    )
    want = [
        [sum(0.9**k * r for k, r in enumerate(row[t : t + steps])) for t in range(LENGTH)]
        for row in x
    ]
    np.testing.assert_allclose(program.run(inputs={"x": x})["y"], want, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slopes(backend: str) -> None:
    """Each value counts in all windows that it lies in."""
    x = np.random.default_rng(3).standard_normal((N, LENGTH), "f4")
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        values = rc.input(rc.f32, (b, t), name="x")
        y = values[b, rc.max(t - 3, 0) : t + 1].sum()
        (y * y)[0:B, 0:T].sum().backward(wrt=[values])
        assert values.grad is not None
        rc.output(slope=values.grad)
    got = ctx.run({B: N, T: LENGTH}, inputs={"x": x}, backend=backend)["slope"]
    sums = np.array([[row[max(t - 3, 0) : t + 1].sum() for t in range(LENGTH)] for row in x])
    want = [[2 * row[t : t + 4].sum() for t in range(LENGTH)] for row in sums]
    np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_axes_of_points_and_small_integers(backend: str) -> None:
    x = np.random.default_rng(4).integers(0, 255, (N, LENGTH, 3)).astype("u8")
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        pixels = rc.input(rc.u8[3], (b, t), name="x")
        rc.output(
            y=pixels[b, rc.max(t - 2, 0) : t + 1].sum(), z=pixels[b, t : rc.min(t + 2, T)].max(0)
        )
    got = ctx.run({B: N, T: LENGTH}, inputs={"x": x}, backend=backend)
    for b in range(N):
        for t in range(LENGTH):
            assert got["y"][b, t] == x[b, max(t - 2, 0) : t + 1].astype(int).sum()
            assert (got["z"][b, t] == x[b, t : t + 2].max(0)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_overflows_between_does_not_spread(backend: str) -> None:
    """No value is taken away from a sum again: infinity ends with its window."""
    x = np.ones((N, LENGTH), "f4")
    x[0, 3], x[1, 5] = np.inf, np.nan
    program = compiled(lambda x, b, t, T: x[b, rc.max(t - 2, 0) : t + 1].sum(), backend)
    y = np.asarray(program.run(inputs={"x": x})["y"])
    assert np.isinf(y[0]).tolist() == [3 <= t <= 5 for t in range(LENGTH)]
    assert np.isnan(y[1]).tolist() == [5 <= t <= 7 for t in range(LENGTH)]


def test_in_a_loop_that_something_else_needs_a_window_is_read_at_once() -> None:
    def program(x: Any, b: Any, t: Any, T: Any) -> Any:
        y = rc.like(rc.f32, (b, t))
        y[b, 0] = 0.0
        y[b, t] = y[b, t - 1] * 0.5 + x[b, rc.max(t - 4, 0) : t + 1].max()
        return y

    x = np.random.default_rng(5).standard_normal((N, LENGTH), "f4")
    made = compiled(program, "numpy")
    assert "block" not in made.schedule_text
    want = np.zeros((N, LENGTH))
    for t in range(1, LENGTH):
        want[:, t] = want[:, t - 1] * 0.5 + x[:, max(t - 4, 0) : t + 1].max(1)
    np.testing.assert_allclose(made.run(inputs={"x": x})["y"], want, rtol=1e-5)


def compiled(written: Callable[..., Any], backend: str) -> rc.Executable:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32, (b, t), name="x")
        rc.output(y=written(x, b, t, T))
    return ctx.compile({B: N, T: LENGTH}, backend=backend)
