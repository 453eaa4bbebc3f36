"""Reads out of range where no branch chooses them are no mistake, and send no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS, expect_interpreted
from recurra.errors import DomainError

Of = Callable[[Any, Any, Any], Any]

CHOSEN: dict[str, Of] = {
    "a branch of a branch": lambda x, t, T: rc.where(
        t >= 2, rc.where(t < T - 1, x[t - 2] * x[t + 1], x[t - 1]), 1.0 * x
    ),
    "a point": lambda x, t, T: rc.where(t >= 5, (x[5] * 2.0).sin() + x[4].cos(), x),
    "a range": lambda x, t, T: rc.where(t >= 3, (x[t - 3 : t].mean(axis=0) * x[t - 1]).exp(), 0.0),
    "a range on both sides": lambda x, t, T: rc.where(
        (t >= 2) & (t < T - 2), x[t - 2 : t + 3].max(axis=0), x
    ),
    "a range of points": lambda x, t, T: rc.where(t >= 3, x[0:4].sum(axis=0), x),
    "in turns": lambda x, t, T: rc.where((t % 2 == 0) & (t + 1 < T), x[t + 1] * 3.0, x),
    "one or the other": lambda x, t, T: rc.where((t < 1) | (t >= 4), x, x[t - 1] * x[t]),
    "never": lambda x, t, T: rc.where(t >= 100, x[t + 1000], x),
    "from the end": lambda x, t, T: rc.where(t < T - 3, x[T - 4 - t], x),
}


def numbers(t: Any) -> Any:
    x = rc.like(rc.f32, domain=(t,), name="x")
    x[t] = rc.value(t).cast("f32") + 1.0
    return x


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize(
    ("backend", "lengths"), [("numpy", (1, 2, 3, 7)), ("jax", (2,)), ("torch", (2,))]
)
def test_values_and_gradients(name: str, backend: str, lengths: tuple[int, ...]) -> None:
    for length in lengths:
        ctx = rc.Context(dims="t")
        with ctx as (t, T):
            x = numbers(t)
            y = CHOSEN[name](x, t, T)
            y[0:T].sum().backward(wrt=[x])
            rc.output(y=y, grad=x.grad)
        expect_interpreted(ctx, {T: length}, backend, rtol=1e-5)


def test_one_that_is_chosen_is_refused() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = numbers(t)
        rc.output(y=rc.where(t >= 5, (x[5] * 2.0).sin(), x), z=rc.where(t >= 4, x[5] * 2.0, x))
    with pytest.raises(DomainError, match=r"x\[5\] reads past the end of t"):
        ctx.compile({T: 5}, backend="numpy")
    assert len(ctx.compile({T: 4}, backend="numpy").run()["z"]) == 4


def ends(k: Any, T: Any, low: Callable[..., Any], high: Callable[..., Any]) -> dict[str, Any]:
    """Indices that stay inside: of Python's numbers, or of recurrent tensors."""
    return {
        "the one before": high(k - 1, 0),
        "the one after": low(k + 1, T - 1),
        "the second before": high(k - 2, 0),
        "after, then before": high(low(k + 1, T - 1) - 2, 0),
        "from the end": high(T - 2 - k, 0),
        "halves": k // 2,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ends(0, 1, min, max))
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_clamped_reads_are_those_of_torch(name: str, backend: str) -> None:
    for length in (1, 2, 6):
        given = torch.arange(1.0, length + 1.0, requires_grad=True)
        want = sum(
            (given[k] * given[ends(k, length, min, max)[name]].sin() for k in range(length)),
            torch.tensor(0.0),
        )
        want.backward()  # pyright: ignore[reportUnknownMemberType]
        assert given.grad is not None
        ctx = rc.Context(dims="t")
        with ctx as (t, T):
            x = numbers(t)
            y = x * x[ends(t, T, rc.min, rc.max)[name]].sin()
            y[0:T].sum().backward(wrt=[x])
            rc.output(grad=x.grad)
        have = ctx.compile({T: length}, backend=backend).run()["grad"]
        np.testing.assert_allclose(have, given.grad.numpy(), rtol=1e-5)
