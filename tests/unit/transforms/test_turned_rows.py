"""Ranges of rows that the data end, read from their end or in order: each row is as if alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc

MOST = 6
Read = Callable[[Any], Any]  # u[b,lo:hi] by its end, lo = t and hi = T unless they are given
TURNED: dict[str, Callable[[Read, Any, Any, Any], Any]] = {
    "its sum": lambda x, u, t, T: x(T).flip().sum(),
    "its partial sums": lambda x, u, t, T: x(T).flip().cumsum().tanh().sum(),
    "turned twice": lambda x, u, t, T: (x(T).flip().cumsum().flip() * x(T)).sum(),
    "against itself": lambda x, u, t, T: (x(T).flip() * x(T)).sum().tanh(),
    "against itself, contracted": lambda x, u, t, T: rc.einsum("k,k->", x(T).flip(), x(T)).tanh(),
    "its discounted sum": lambda x, u, t, T: x(T).flip().discounted_sum(0.8),
    "of a window": lambda x, u, t, T: x(rc.min(t + 3, T)).flip().discounted_sum(0.8),
    "its first element": lambda x, u, t, T: x(T).flip().index(0),
    "where it is largest": lambda x, u, t, T: x(T).flip().argmax().cast("f32") + u,
    "its largest": lambda x, u, t, T: (x(T).flip() * u).max().tanh(),
    "its weights": lambda x, u, t, T: (x(T).flip().softmax() * x(T)).sum(),
    "of the whole row": lambda x, u, t, T: x(T, 0).flip().cumsum().tanh().sum() * u,
}


def program(kind: str) -> tuple[rc.Context, Any, Any, Any]:
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        done = rc.input(rc.boolean, (b, t), name="done")
        x = rc.input(rc.f32, (b, t), name="x")
        w = rc.constant(np.float32(0.7))
        u = (x * w).sin() + w * 0.1
        y = TURNED[kind](lambda hi, lo=t: u[b, lo:hi], u, t, T) + u * 0.01
        loss = y[0:B, 0:T].sum()
        loss.backward(wrt=[w])
        rc.output(y=y, loss=loss, d_w=w.grad)
    return ctx, B, T, done


@pytest.mark.slow
@pytest.mark.parametrize("kind", TURNED)
def test_every_row_is_what_it_is_alone(kind: str) -> None:
    rng = np.random.default_rng(0)
    done, x = rng.random((4, MOST)) < 0.3, rng.normal(size=(4, MOST)).astype(np.float32)
    ctx, B, T, end = program(kind)
    got = ctx.compile({B: 4, T: rc.until(end, max=MOST)}, backend="numpy").run(
        inputs={"done": done, "x": x}
    )
    lengths = [int(d.argmax()) + 1 if d.any() else MOST for d in done]
    assert len(set(lengths)) > 2
    alone = [
        ctx.compile({B: 1, T: n}, backend="numpy").run(inputs={"x": x[k : k + 1, :n]})
        for k, n in enumerate(lengths)
    ]
    for name in ("loss", "d_w"):
        np.testing.assert_allclose(got[name], sum(a[name] for a in alone), rtol=1e-4, atol=1e-5)
    want = np.stack([np.pad(a["y"][0], (0, MOST - n)) for a, n in zip(alone, lengths, strict=True)])
    np.testing.assert_allclose(got["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("least", [0.0, 0.3])
def test_rows_are_sorted_with_what_is_no_number_last(least: float, backend: str) -> None:
    """What is past the end of a row comes behind its NaNs, wherever the loop has stopped."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.uniform(domain=(b, t))
        y, last = rc.where(x < least, float("nan"), x), x > 0.7
        row = y[b, 0:T].sort()
        rc.output(first=row.index(0), lost=(row != row).cast("f32").sum())
        rc.output(order=y[b, 0:T].argsort().index(0), x=x)
    got = ctx.compile({B: 6, T: rc.until(last, max=9)}, backend=backend).run()
    for k, mine in enumerate(got["x"]):
        mine = mine[: next((j for j, v in enumerate(mine) if v > 0.7), 8) + 1]
        mine = np.where(mine < least, np.nan, mine)
        np.testing.assert_allclose(got["first"][k], np.sort(mine)[0])
        assert got["lost"][k] == np.isnan(mine).sum()
        assert got["order"][k] == np.argsort(mine)[0]
