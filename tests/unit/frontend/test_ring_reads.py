"""`x[(i - 1) % I]` reads around the end of a dim: by branches, whatever the bound is."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS, expect_interpreted
from recurra.errors import DomainError


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_periodic_stencil_and_its_slope(backend: str, size: int) -> None:
    ctx = rc.Context(dims="t i")
    with ctx as ((t, T), (i, I)):
        first = rc.input(rc.f32, (i,), name="first")
        u = rc.like(rc.f32, (t, i), name="u")
        u[0, i] = first
        u[t + 1, i] = 0.25 * u[t, (i - 1) % I] + 0.5 * u[t, (i + 1) % I]
        u[T - 1, 0:I].square().sum().backward(wrt=[first])
        rc.output(u=u, slope=first.grad)
    start = np.linspace(-1.0, 2.0, size, dtype="f4")
    found = ctx.run({T: 4, I: size}, inputs={"first": start}, backend=backend)
    want = [start]
    for _ in range(3):
        want.append(0.25 * np.roll(want[-1], 1) + 0.5 * np.roll(want[-1], -1))
    slope = 2.0 * want[-1]
    for _ in range(3):
        slope = 0.25 * np.roll(slope, -1) + 0.5 * np.roll(slope, 1)
    np.testing.assert_allclose(found["u"], np.stack(want), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["slope"], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_life_on_a_torus(backend: str) -> None:
    ctx = rc.Context(dims="i j")
    with ctx as ((i, I), (j, J)):
        cells = rc.input(rc.i32, (i, j), name="cells")
        around = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
        alive = [cells[(i + a) % I, (j + b) % J] for a, b in around]
        rc.output(alive=sum(alive[1:], start=alive[0]), column=cells[0:I, (j + 1) % J].sum(axis=0))
    board = np.random.default_rng(0).integers(0, 2, (4, 3)).astype("i4")
    found = ctx.run({I: 4, J: 3}, inputs={"cells": board}, backend=backend)
    rolled = [np.roll(board, (-a, -b), (0, 1)) for a, b in around]
    assert (found["alive"] == sum(rolled)).all()
    assert (found["column"] == np.roll(board, -1, 1).sum(0)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_elsewhere_it_is_a_tensor(backend: str) -> None:
    ctx = rc.Context(dims="i")
    with ctx as (i, I):
        x = rc.value(i) * 10
        rc.output(k=(i - 1) % I, n=2 * ((i + 1) % I), taken=x[0:I][(i - 1) % I], whole=I // (i + 1))
    expect_interpreted(ctx, {I: 4}, backend)
    found = ctx.run({I: 4}, backend=backend)
    assert found["k"].tolist() == [3, 0, 1, 2]
    assert found["n"].tolist() == [2, 4, 6, 0]
    assert found["taken"].tolist() == [30, 0, 10, 20]
    assert found["whole"].tolist() == [4, 2, 1, 1]


def test_the_hint_of_a_longer_way_works() -> None:
    ctx = rc.Context(dims="t i")
    with ctx as ((t, T), (i, I)):
        u = rc.like(rc.f32, (t, i), name="u")
        u[t, i] = rc.value(i) + rc.value(t)
        with pytest.raises(DomainError) as refused:
            u[t, (i - 2) % I]
        line = str(refused.value).rpartition("turn it: ")[2]
        rc.output(far=eval(line, {"u": u, "t": t, "i": i, "I": I}))
    want = np.roll(np.arange(5.0), 2) + np.arange(2.0)[:, None]
    assert (ctx.run({T: 2, I: 5}, backend="numpy")["far"] == want).all()
