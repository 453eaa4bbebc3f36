"""Reads and conditions by numbers that only the data know: T//2, T%2, T-1-t, max(T-2, 0)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import DomainError

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


@BACKENDS
def test_numbers_of_time_and_length_are_those_of_each_row(backend: str):
    """A number of t and T is one for each row, also where all rows share what it is made of."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.value(t) * 10.0 + rc.value(b) * 20.0
        share = rc.value(t)
        y = share * rc.value(T)
        taken = x[b, 0:T].take(rc.value(t, "i32"))
        (taken.square()[0:B, 0:T].sum() + (x * rc.value(T))[0:B, 0:T].sum()).backward(wrt=[x])
        rc.output(y=y, total=y[0:T].sum(), rest=y[t:T].sum(), taken=taken, slope=x.grad)
        end = rc.until(x >= 30.0, max=5)
    got = ctx.compile({B: 2, T: end}, backend=backend).run()
    for row, n in enumerate((4, 2)):
        k = np.arange(n)
        value = 10.0 * k + 20.0 * row
        want = {
            "y": k * n,
            "taken": value,
            "slope": 2 * value + n,
            "rest": [n * sum(range(j, n)) for j in k],
        }
        for name, points in want.items():
            assert got[name][row].tolist() == [*points, *(0.0,) * (5 - n)], name
        assert got["total"][row] == n * sum(k)


def test_slopes_of_what_rows_share_through_their_lengths_are_refused():
    """The slope would be a sum over rows of what differs by T, which is set in each of them."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.value(t) * 10.0 + rc.value(b) * 20.0
        share = rc.value(t) * 1.0
        (x * (share * rc.value(T)))[0:B, 0:T].sum().backward(wrt=[share])
        rc.output(slope=share.grad)
        end = rc.until(x >= 30.0, max=5)
    with pytest.raises(DomainError, match="T differs from row to row"):
        ctx.compile({B: 2, T: end}, backend="numpy")


def test_the_end_of_what_is_in_no_row_is_refused():
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.value(t) * 10.0 + rc.value(b) * 20.0
        y = rc.value(t) * rc.value(T)
        rc.output(z=x + y[T - 1 - t])
        end = rc.until(x >= 30.0, max=5)
    with pytest.raises(DomainError, match="reads the end of a row, and y is in none"):
        ctx.compile({B: 2, T: end}, backend="numpy")
