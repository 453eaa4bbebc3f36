"""A recurrence backward in time that reads the end of its own row, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS

Step = Callable[[Any, int, int, float], float]  # of the row after t, t, its length, the weight
STEPS: dict[str, tuple[Callable[..., Any], Step]] = {
    "the last": (
        lambda y, b, t, T, w: y[b, t + 1] * w + y[b, T - 1],
        lambda y, t, n, w: y[t + 1] * w + y[n - 1],
    ),
    "n steps on": (
        lambda y, b, t, T, w: y[b, rc.min(t + 2, T - 1)] * w + 1.0,
        lambda y, t, n, w: y[min(t + 2, n - 1)] * w + 1.0,
    ),
    "both": (
        lambda y, b, t, T, w: y[b, rc.min(t + 3, T - 1)] * w + y[b, t + 1] * y[b, T - 1],
        lambda y, t, n, w: y[min(t + 3, n - 1)] * w + y[t + 1] * y[n - 1],
    ),
}
LENGTHS = (4, 1, 2)


def by_hand(step: Step, lengths: tuple[int, ...], size: int, w: float) -> np.ndarray:
    y = np.zeros((len(lengths), size))
    for b, n in enumerate(lengths):
        y[b, n - 1] = (b + 1.0) * w
        for t in range(n - 2, -1, -1):
            y[b, t] = step(y[b], t, n, w)
    return y


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_values_and_slopes(name: str, by_data: bool, backend: str) -> None:
    written, step = STEPS[name]
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        w = rc.constant(0.7)
        y = rc.like(rc.f32, (b, t))
        y[b, T - 1] = (rc.value(b) + 1.0) * w
        y[b, t] = written(y, b, t, T, w)
        y[0:B, 0:T].sum().backward(wrt=[w])
        assert w.grad is not None
        rc.output(y=y, slope=w.grad)
        last = rc.constant(LENGTHS, "i32").take(rc.value(b, "i32")) - 1
        end = rc.until(rc.value(t, "i32") >= last, max=5) if by_data else 5
    got = ctx.run({B: 3, T: end}, backend=backend)
    lengths = LENGTHS if by_data else (5, 5, 5)
    np.testing.assert_allclose(got["y"], by_hand(step, lengths, 5, 0.7), rtol=1e-5)
    low, high = (by_hand(step, lengths, 5, 0.7 + e).sum() for e in (-1e-6, 1e-6))
    np.testing.assert_allclose(got["slope"], (high - low) / 2e-6, rtol=1e-4)
