"""Points past the end of all rows: what they hold depends on the dim that is past it."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc

X = np.array([[0.8, 0.6, 0.5, 0.5, 0.9, 0.9], [0.9, 0.5, 0.7, 0.8, 0.6, 0.5]])
LENGTHS = 4, 3  # the sums of rows top 2


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_rows_that_go_back_from_their_ends_have_gradients(backend: str) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f64, (b, t), name="x")
        h = rc.like(rc.f64, (b, t))
        h[b, 0] = x
        h[b, t] = h[b, t - 1] * 0.5 + x
        back = rc.like(rc.f64, (b, t))
        back[b, T - 1] = h[b, T - 1]  # its gradient goes from the last point of `back` to that of h
        back[b, t] = back[b, t + 1] * 0.25 + h
        back[0:B, 0].sum().backward(wrt=[x])
        assert x.grad is not None
        rc.output(slope=x.grad)
        ends = rc.until(x[b, 0 : t + 1].sum() > 2.0, max=6)
    want = np.zeros(X.shape)
    for row, length in zip(want, LENGTHS, strict=True):
        for t in range(length):  # x[t] is in h[s] by 2 ** (t - s), and h[s] in the sum by 4 ** -s
            row[t] = sum(0.25**s * 0.5 ** (s - t) for s in range(t, length))
    found = ctx.compile({B: 2, T: ends}, backend=backend).run(inputs={"x": X})["slope"]
    np.testing.assert_allclose(found, want, rtol=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_branches_that_are_statements_of_their_own(backend: str) -> None:
    """Their stores are filled past the end as one array."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f64, (b, t), name="x")
        y = rc.like(rc.f64, (b, t))
        y[b, 0] = x
        y[b, t] = y[b, rc.max(t - 2, 0)] * 0.5
        ends = rc.until(y < 0.3, max=6)
        rc.output(y=y, rest=y[b, t:T].sum())
    found = ctx.compile({B: 2, T: ends}, backend=backend).run(inputs={"x": X})
    y = np.array([[0.8, 0.4, 0.4, 0.2, 0, 0], [0.9, 0.45, 0.45, 0.225, 0, 0]])
    np.testing.assert_allclose(found["y"], y, rtol=1e-9)
    np.testing.assert_allclose(found["rest"], y[:, ::-1].cumsum(axis=1)[:, ::-1], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_gradients_through_windows_and_points_near_the_start(backend: str) -> None:
    """Conditions of gradients that hold at every point of a row are no choices by data."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f64, (b, t), name="x")
        y = rc.like(rc.f64, (b, t))
        y[b, 0] = x
        y[b, t] = rc.where(x > 0.7, y[b, t - 1] + x, y[b, rc.max(t - 2, 0)] * 0.5)
        near = y[b, rc.max(t - 1, 0) : rc.min(t + 2, T)].sum()
        near[0:B, 0:T].sum().backward(wrt=[x])
        assert x.grad is not None
        rc.output(near=near, slope=x.grad)
        ends = rc.until(x[b, 0 : t + 1].sum() > 2.0, max=6)
    near, slope = np.zeros(X.shape), np.zeros(X.shape)
    for x, length, found, d in zip(X, LENGTHS, near, slope, strict=True):
        y = np.zeros(length)
        by = np.eye(length)  # by[t, s] is how y[t] grows with x[s]
        for t in range(length):
            if t == 0:
                y[0] = x[0]
            elif x[t] > 0.7:
                y[t], by[t] = y[t - 1] + x[t], by[t - 1] + by[t]
            else:
                y[t], by[t] = 0.5 * y[max(t - 2, 0)], 0.5 * by[max(t - 2, 0)]
        for t in range(length):
            window = slice(max(t - 1, 0), t + 2)
            found[t] = y[window].sum()
            d[:length] += by[window].sum(axis=0)
    got = ctx.compile({B: 2, T: ends}, backend=backend).run(inputs={"x": X})
    np.testing.assert_allclose(got["near"], near, rtol=1e-9)
    np.testing.assert_allclose(got["slope"], slope, rtol=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_branches_near_the_end_beside_others(backend: str) -> None:
    """Of three branches, two are told by the ends of rows."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f64, (b, t), name="x")
        y = rc.like(rc.f64, (b, t))
        y[b, 0] = x
        y[(t >= T - 2) & (t > 0), b, t] = x + y[b, t - 1] * 3.0
        y[b, t] = y[b, t - 1]
        rc.output(y=y)
        ends = rc.until(x[b, 0 : t + 1].sum() > 2.0, max=6)
    want = np.zeros(X.shape)
    for row, x, length in zip(want, X, LENGTHS, strict=True):
        for t in range(length):
            near = t >= length - 2
            row[t] = x[0] if t == 0 else x[t] + 3 * row[t - 1] if near else row[t - 1]
    found = ctx.compile({B: 2, T: ends}, backend=backend).run(inputs={"x": X})["y"]
    np.testing.assert_allclose(found, want, rtol=1e-9)
