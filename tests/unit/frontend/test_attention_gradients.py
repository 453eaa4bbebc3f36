"""Training through attention over the past: gradients of keys and values are contractions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS

B, T, D = 2, 64, 8
RANGES: dict[str, tuple[Callable[[Any], slice], Callable[[Any, Any], Any]]] = {
    "causal": (lambda t: slice(0, t + 1), lambda i, j: j <= i),
    "window": (lambda t: slice(rc.max(t - 7, 0), t + 1), lambda i, j: (j <= i) & (j >= i - 7)),
    "chunk": (lambda t: slice(t // 8 * 8, t + 1), lambda i, j: (j <= i) & (j >= i // 8 * 8)),
}


def weights() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((D, D)).astype("f4") * 0.4 for _ in range(3)]


def attention(past: Callable[[Any], slice]) -> tuple[rc.Context, dict[Any, int]]:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B_), (t, T_)):
        x = rc.input(rc.f32[D], (b, t), name="x")
        q, k, v = (x @ rc.constant(w) for w in weights())
        scores = rc.einsum("d,nd->n", q, k[b, past(t)]).softmax()
        o = rc.einsum("n,nd->d", scores, v[b, past(t)])
        o.square().sum()[0:B_, 0:T_].sum().backward(wrt=[x])
        rc.output(slope=x.grad)
    return ctx, {B_: B, T_: T}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("past", RANGES)
def test_slopes_and_their_memory(past: str, backend: str) -> None:
    ctx, bounds = attention(RANGES[past][0])
    program = ctx.compile(bounds, backend=backend)
    rows = np.random.default_rng(1).standard_normal((B, T, D)).astype("f4")
    found = program.run(inputs={"x": rows})["slope"]
    x = torch.tensor(rows, requires_grad=True)
    q, k, v = (x @ torch.tensor(w) for w in weights())
    i = torch.arange(T)
    seen = RANGES[past][1](i[:, None], i[None])
    scores = (q @ k.transpose(1, 2)).masked_fill(~seen, -1e30).softmax(-1)
    (scores @ v).square().sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-3, atol=1e-4)
    assert program.memory.nbytes < 25 * B * T * T * 4  # a product of all by all has D times B T T


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tree_is_folded_and_differentiated(backend: str) -> None:
    """A point is read at n // 2 alone: what reads 2 n and 2 n + 1 there is asked for, no more."""
    ctx = rc.Context(dims="n")
    with ctx as (n, N):
        x = rc.input(rc.f32, (n,), name="x")
        s = rc.like(rc.f32, (n,), name="s")
        s[0] = 0.0
        s[n >= N // 2] = x
        s[n] = s[2 * n] * s[2 * n + 1]
        s[1].backward(wrt=[x])
        rc.output(product=s[1], slope=x.grad)
    leaves = np.random.default_rng(0).random(16).astype("f4") + 0.5
    found = ctx.run({N: 16}, inputs={"x": leaves}, backend=backend)
    product = leaves[8:].prod()
    np.testing.assert_allclose(found["product"], product, rtol=1e-5)
    np.testing.assert_allclose(found["slope"][8:], product / leaves[8:], rtol=1e-4)
    assert not found["slope"][:8].any()
