"""Training through 0:t+1: where t orders nothing, products read all points as one array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS

N, LENGTH, HEADS, SIZE = 2, 7, 2, 3
SLOPES = np.array([0.5, 0.1], "f4")


def attention(biased: bool, gradients: bool) -> tuple[Any, dict[Any, int]]:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        q, k, v = (rc.input(rc.f32[HEADS, SIZE], (b, t), name=name) for name in "qkv")
        scores = rc.einsum("hd,nhd->hn", q, k[b, 0 : t + 1])
        if biased:
            behind = rc.value(t)[0 : t + 1] - rc.value(t)
            scores = scores + rc.constant(SLOPES).reshape(HEADS, 1) * behind
        y = rc.einsum("hn,nhd->hd", scores.softmax(), v[b, 0 : t + 1])
        outputs = {"y": y}
        if gradients:
            y.square().sum().backward(wrt=[q, k, v])
            outputs |= {f"d{x.name}": x.grad for x in (q, k, v)}
        rc.output(**outputs)
    return ctx, {B: N, T: LENGTH}


def by_torch(given: dict[str, np.ndarray], biased: bool) -> dict[str, np.ndarray]:
    q, k, v = (torch.tensor(given[name], requires_grad=True) for name in "qkv")
    scores, t = torch.einsum("bthd,bnhd->bhtn", q, k), torch.arange(LENGTH)
    if biased:
        scores = scores + torch.tensor(SLOPES)[:, None, None] * (t - t[:, None])
    weights = scores.masked_fill(t > t[:, None], -torch.inf).softmax(-1)
    y = torch.einsum("bhtn,bnhd->bthd", weights, v)
    y.square().sum().backward()
    grads = {f"d{name}": x.grad for name, x in zip("qkv", (q, k, v), strict=True)}
    return {"y": y.detach().numpy()} | {n: g.numpy() for n, g in grads.items() if g is not None}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_values_and_slopes(biased: bool, last: bool, backend: str) -> None:
    dice = np.random.default_rng(7)
    given = {name: dice.standard_normal((N, LENGTH, HEADS, SIZE), "f4") for name in "qkv"}
    ctx, sizes = attention(biased, gradients=True)
    got = ctx.run(sizes, inputs=given, backend=backend, batch_last=last)
    for name, want in by_torch(given, biased).items():
        np.testing.assert_allclose(got[name], want, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("gradients", [False, True])
def test_there_is_no_loop(gradients: bool) -> None:
    """Nor a copy of what is attended to for every t."""
    ctx, sizes = attention(biased=False, gradients=gradients)
    program = ctx.compile(sizes, backend="numpy")
    equations = program.schedule_text.splitlines()
    assert [line.strip() for line in equations if "for t" in line] == ["for t:"], equations
    ctx, sizes = attention(biased=False, gradients=gradients)
    longer = {dim: size * 8 for dim, size in sizes.items()}
    peak = ctx.compile(longer, backend="numpy").memory.nbytes
    scores = 8 * N * (8 * LENGTH) ** 2 * HEADS * 4
    assert peak < 8 * scores  # a copy for every t would be SIZE times that, twice


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_axis_that_begins_where_the_range_does(backend: str) -> None:
    """What is summed for the slope of x are copies of one number, as many as there are points."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        y = x[0 : t + 1].softmax(axis=0) @ x[0 : t + 1]
        y.backward(wrt=x)
        rc.output(dx=x.grad)
    given = np.random.default_rng(3).standard_normal(LENGTH, "f4")
    leaf = torch.tensor(given, requires_grad=True)
    sum(leaf[: k + 1].softmax(0) @ leaf[: k + 1] for k in range(LENGTH)).backward()
    got = ctx.run({T: LENGTH}, inputs={"x": given}, backend=backend)["dx"]
    assert leaf.grad is not None
    np.testing.assert_allclose(got, leaf.grad.numpy(), rtol=2e-4, atol=1e-5)
