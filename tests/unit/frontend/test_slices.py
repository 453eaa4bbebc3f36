"""Ranges of a value in steps, and diagonals: as in NumPy, with the gradients of torch."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import everywhere

X = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
ENDS = (None, 0, 1, 3, 7, -1, -2, -7)
BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])


def test_every_step_of_an_axis() -> None:
    parts = [slice(*s) for s in product(ENDS, ENDS, (2, 3, 7, -1, -2, -7))]
    ctx = rc.Context(num_dims=0)
    with ctx:
        x = rc.constant(X)
        rc.output(**{str(k): x[:, part].sum(axis=0) * 1.0 for k, part in enumerate(parts)})
    found = ctx.run({}, backend="numpy")
    for k, part in enumerate(parts):
        want = X[:, part].sum(axis=0)
        np.testing.assert_allclose(found[str(k)], want, rtol=1e-6, err_msg=str(part))


@BACKENDS
def test_steps_and_diagonals_with_their_slopes(backend: str) -> None:
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    a, m = (torch.tensor(x, requires_grad=True) for x in (X, X[:, 1:4].copy()))
    diagonal, trace = torch.einsum("ii->i", m), torch.einsum("ii->", m)
    inside = torch.einsum("iij->j", torch.stack([m, 2.0 * m, 3.0 * m], dim=2))
    want = [a.detach()[:, ::2], a.detach().flip(1)[::2, 1:4:2], diagonal, trace, inside]
    slope = (torch.tensor(weights) * a[:, ::2]).sum() + a.flip(1)[::2, 1:4:2].square().sum()
    (slope + diagonal.square().sum() + trace * inside.sum()).backward()
    ctx = rc.Context(num_dims=0)
    with ctx:
        x, n = rc.constant(X), rc.constant(X[:, 1:4])
        even, back = x[:, ::2], x[::2, 3:0:-2]
        d, t = rc.einsum("ii->i", n), rc.einsum("ii->", n)
        j = rc.einsum("iij->j", rc.stack([n, 2.0 * n, 3.0 * n], axis=2))
        assert a.grad is not None
        assert m.grad is not None
        loss = (rc.constant(weights) * even).sum() + back.square().sum()
        (loss + d.square().sum() + t * j.sum()).backward(wrt=[x, n])
        assert x.grad is not None
        assert n.grad is not None
        rc.output(a=even, b=back, c=d, d=t, e=j, f=x.grad, g=n.grad)
    found = ctx.run({}, backend=backend)
    for key, y in zip("abcdefg", [*want, a.grad, m.grad], strict=True):
        np.testing.assert_allclose(found[key], y.detach().numpy(), rtol=1e-5, err_msg=key)


def test_an_axis_of_a_size_that_comes_later_is_turned() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x: Any = rc.value(t) * 1.0
        rc.output(y=x[0:T][::-1], trace=rc.einsum("tt->", x[0:T].outer(x[0:T])))
    found = ctx.run({T: 4}, backend="numpy")
    assert found["y"].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert found["trace"] == 14.0


@pytest.mark.parametrize("length", [1, 2, 6])
def test_points_of_a_dim_in_the_other_order(length: int) -> None:
    given = np.random.default_rng(1).normal(size=(3, length)).astype(np.float32)
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32, (b, t), name="x")
        past = x[b, t::-1].discounted_sum(0.5)
        (past * past)[0:B, 0:T].sum().backward(wrt=[x])
        rc.output(
            whole=x[b, ::-1],
            both=x[::-1, ::-1],
            last=x[::-1, t][0],
            past=past,
            rest=x[b, :t:-1].sum(),
            few=x[b, -1 : rc.max(T - 4, 0) : -1].sum(),
            slope=x.grad,
        )
    a = torch.tensor(given, requires_grad=True)
    halves = 0.5 ** torch.arange(length)
    rows = [(a[:, : k + 1].flip(1) * halves[: k + 1]).sum(1) for k in range(length)]
    total = torch.stack(rows, dim=1)
    (total * total).sum().backward()
    assert a.grad is not None
    want = {
        "whole": given[:, ::-1],
        "both": given[::-1, ::-1],
        "last": given[-1],
        "past": total.detach().numpy(),
        "rest": np.stack([given[:, :k:-1].sum(1) for k in range(length)], 1),
        "few": given[:, -1 : max(length - 4, 0) : -1].sum(1),
        "slope": a.grad.numpy(),
    }
    for backend, found in everywhere(ctx, {B: 3, T: length}, {"x": given}).items():
        for name, y in want.items():
            np.testing.assert_allclose(
                found[name], y, rtol=1e-5, atol=1e-6, err_msg=f"{name} on {backend}"
            )
