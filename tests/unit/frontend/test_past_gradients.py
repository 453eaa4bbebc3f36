"""Gradients through recurrences that read ranges of their own past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc

X = np.random.default_rng(0).uniform(0.3, 1.0, 9)
Past = Callable[[Any, Any, Any], Any]
PASTS: dict[str, tuple[Past, Callable[[np.ndarray, np.ndarray, int], float]]] = {
    "sum": (lambda y, x, t: y[0:t].sum(), lambda y, x, t: y[:t].sum()),
    "mean": (lambda y, x, t: y[0:t].mean(), lambda y, x, t: y[:t].mean()),
    "window": (
        lambda y, x, t: y[rc.max(t - 2, 0) : t].square().sum(),
        lambda y, x, t: np.square(y[max(t - 2, 0) : t]).sum(),
    ),
    "largest": (lambda y, x, t: y[0:t].max(), lambda y, x, t: y[:t].max()),
    "largest of a window": (
        lambda y, x, t: y[rc.max(t - 3, 0) : t].max() + x * 0.1,
        lambda y, x, t: y[max(t - 3, 0) : t].max() + x[t] * 0.1,
    ),
    "softmax": (
        lambda y, x, t: (y[0:t].softmax() * y[0:t]).sum(),
        lambda y, x, t: (np.exp(y[:t]) * y[:t]).sum() / np.exp(y[:t]).sum(),
    ),
    "every other": (lambda y, x, t: y[0:t:2].sum(), lambda y, x, t: y[:t:2].sum()),
    "weighted": (lambda y, x, t: (y[0:t] * x[0:t]).sum(), lambda y, x, t: (y[:t] * x[:t]).sum()),
    "beside": (
        lambda y, x, t: (y[0:t] * x).tanh().sum(),
        lambda y, x, t: np.tanh(y[:t] * x[t]).sum(),
    ),
}


def loss(x: np.ndarray, past: Callable[[np.ndarray, np.ndarray, int], float]) -> float:
    y = np.zeros(len(x))
    y[0] = x[0]
    for t in range(1, len(x)):
        y[t] = 0.3 * past(y, x, t) + x[t]
    return float((y * y * x).sum() + y[-1])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("name", PASTS)
def test_gradients_through_the_past(name: str, backend: str) -> None:
    past, by_hand = PASTS[name]
    for length in (1, 2, len(X)):
        ctx = rc.Context(dims="t")
        with ctx as (t, T):
            x, y = rc.input(rc.f64, (t,), name="x"), rc.like(rc.f64, (t,))
            y[0] = x
            y[t] = past(y, x, t) * 0.3 + x
            ((y * y * x)[0:T].sum() + y[T - 1]).backward(wrt=[x])
            assert x.grad is not None
            rc.output(slope=x.grad)
        given, want = X[:length], np.zeros(length)
        for k, step in enumerate(1e-6 * np.eye(length)):
            want[k] = (loss(given + step, by_hand) - loss(given - step, by_hand)) / 2e-6
        got = ctx.compile({T: length}, backend=backend).run(inputs={"x": given})["slope"]
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=f"{length} points")
