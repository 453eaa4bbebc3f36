"""Reads and conditions by numbers that only the data know: T//2, T%2, T-1-t, max(T-2, 0)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recurra as rc

MOST = 7
X = np.random.default_rng(0).uniform(0.2, 1.0, (3, MOST))
X[2] += 1.0  # a row that ends early
BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])


def length(x: np.ndarray) -> int:
    """The points of a row: it ends once their sum tops 2."""
    over = np.cumsum(x) > 2.0
    return int(np.argmax(over)) + 1 if over.any() else MOST


def by_hand(x: np.ndarray) -> dict[str, np.ndarray]:
    rows = [x[b, : length(x[b])] for b in range(len(x))]
    back, near, half = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape)
    for b, row in enumerate(rows):
        n = len(row)
        back[b, :n] = row[::-1]
        near[b, :n] = [row[max(t, n - 2)] for t in range(n)]
        half[b, : n // 2] = row[: n // 2]
    return {
        "back": back,
        "near": near,
        "half": half,
        "middle": np.array([r[len(r) // 2] for r in rows]),
        "before": np.array([r[max(len(r) - 2, 0)] for r in rows]),
        "odd": np.array([len(r) % 2 for r in rows], np.float32),
        "first": np.array([r[: len(r) // 2].sum() for r in rows]),
    }


def program() -> tuple[rc.Context, Any]:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f64, (b, t), name="x")
        ends = rc.until(x[b, 0 : t + 1].sum() > 2.0, max=MOST)
        back, near = x[b, T - 1 - t] * 1.0, x[b, rc.max(t, T - 2)] * 1.0
        half, middle = rc.where(t < T // 2, x, 0.0), x[b, T // 2] * 1.0
        loss = (back * x + half * near)[0:B, 0:T].sum() + middle.square()[0:B].sum()
        loss.backward(wrt=[x])
        assert x.grad is not None
        rc.output(back=back, near=near, half=half, middle=middle, odd=rc.value(T % 2))
        rc.output(before=x[b, rc.max(T - 2, 0)], first=x[b, 0 : T // 2].sum(), slope=x.grad)
    return ctx, {B: 3, T: ends}


def loss(x: np.ndarray) -> float:
    r = by_hand(x)
    inside = (r["back"] * x + r["half"] * r["near"]).sum()
    return float(inside + np.square(r["middle"]).sum())


@pytest.mark.slow
@BACKENDS
def test_numbers_of_rows(backend: str) -> None:
    ctx, bounds = program()
    found = ctx.compile(bounds, backend=backend).run(inputs={"x": X})
    for name, want in by_hand(X).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-6, err_msg=name)
    slope = np.zeros(X.shape)
    for at in np.ndindex(X.shape):
        step = np.zeros(X.shape)
        step[at] = 1e-6
        slope[at] = (loss(X + step) - loss(X - step)) / 2e-6
    np.testing.assert_allclose(found["slope"], slope, rtol=1e-6, atol=1e-8)
