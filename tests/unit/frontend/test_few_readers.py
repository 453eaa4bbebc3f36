"""Slopes of what is read in strides, by halves or around an edge: no table of points by points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS

T, U = 256, 128

READS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "strides": (
        lambda x, t, T, u, U: (x[2 * u] * 1.5).tanh()[0:U],
        lambda x: (x[::2] * 1.5).tanh(),
    ),
    "offset": (lambda x, t, T, u, U: x[2 * u + 1].exp()[0:U], lambda x: x[1::2].exp()),
    "pooling": (
        lambda x, t, T, u, U: x[2 * u : 2 * u + 2].max()[0:U],
        lambda x: x.reshape(-1, 2).amax(1),
    ),
    "patches": (
        lambda x, t, T, u, U: (x[2 * u : 2 * u + 2].softmax() * rc.constant([1.0, 2.0])).sum()[0:U],
        lambda x: (x.reshape(-1, 2).softmax(1) * torch.tensor([1.0, 2.0])).sum(1),
    ),
    "upsampling": (
        lambda x, t, T, u, U: (x[t // 2] * rc.value(t))[0:T],
        lambda x: x[torch.arange(T) // 2] * torch.arange(T),
    ),
    "the first again": (
        lambda x, t, T, u, U: (x[rc.max(t - 1, 0)] * x)[0:T],
        lambda x: torch.cat([x[:1], x[:-1]]) * x,
    ),
    "the last again": (
        lambda x, t, T, u, U: (x[rc.min(t + 2, T - 1)] * x)[0:T],
        lambda x: x[torch.arange(T).add(2).clamp(max=T - 1)] * x,
    ),
    "backwards": (
        lambda x, t, T, u, U: (x[T - 1 - t] * rc.value(t))[0:T],
        lambda x: x.flip(0) * torch.arange(T),
    ),
    "around": (lambda x, t, T, u, U: (x[(t + 1) % T] * x)[0:T], lambda x: x.roll(-1) * x),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("read", READS)
def test_slopes_and_their_memory(read: str, backend: str) -> None:
    ours, theirs = READS[read]
    ctx = rc.Context(dims="t u")
    with ctx as ((t, T_), (u, U_)):
        x = rc.input(rc.f32, (t,), name="x")
        ours(x, t, T_, u, U_).square().sum().backward(wrt=[x])
        rc.output(slope=x.grad)
    numbers = np.random.default_rng(0).standard_normal(T).astype("f4")
    program = ctx.compile({T_: T, U_: U}, backend=backend)
    found = program.run(inputs={"x": numbers})["slope"]
    want = torch.tensor(numbers, requires_grad=True)
    theirs(want).square().sum().backward()
    assert want.grad is not None
    np.testing.assert_allclose(found, want.grad.numpy(), rtol=1e-4, atol=1e-5)
    assert program.memory.nbytes < 40 * T * 4  # a table has T * U * 4
