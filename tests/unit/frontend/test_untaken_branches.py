"""The gradient of a branch that is not taken is 0, whatever its slope would be there.

Conditions on dims choose what is read, so nothing hidden may reach a gradient, not even as 0 · inf.
A choice by data evaluates both sides, and is differentiated as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import everywhere

X = np.array([[0, 2], [1, 0], [4, 5], [0, -1], [3, 0.5]], np.float32)
HERE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a quotient": (lambda x, s: rc.where(s > 1, x / rc.value(s - 1), x), lambda x, s: x / (s - 1)),
    "a divisor": (lambda x, s: rc.where(s > 1, 1 / x, x), lambda x, s: 1 / x),
    "a logarithm": (lambda x, s: rc.where(s > 1, x.log(), x), lambda x, s: x.log()),
    "a root": (lambda x, s: rc.where(s > 1, x.sqrt(), x), lambda x, s: x.sqrt()),
    "a power": (lambda x, s: rc.where(s > 1, x**-0.5, x), lambda x, s: x**-0.5),
    "a product": (lambda x, s: rc.where(s > 1, x * x.log(), x), lambda x, s: x * x.log()),
    "two choices": (
        lambda x, s: rc.where(s > 1, rc.where(s >= 1, (1 / x).log(), x), x),
        lambda x, s: (1 / x).log(),
    ),
}


def expect(grad: np.ndarray, found: dict[str, dict[str, np.ndarray]]) -> None:
    for backend, results in found.items():
        np.testing.assert_allclose(results["grad"], grad, rtol=1e-5, err_msg=backend)


@pytest.mark.parametrize("name", HERE)
def test_a_choice_by_a_dim(name: str):
    ours, theirs = HERE[name]
    ctx = rc.Context(dims="s")
    with ctx as ((s, S),):
        x = rc.input(rc.f32[2], (s,), name="x") * 1.0
        ours(x, s).sum()[0:S].sum().backward(wrt=[x])
        rc.output(grad=x.grad)
    want = torch.tensor(X, requires_grad=True)
    sum((theirs(row, k) if k > 1 else row).sum() for k, row in enumerate(want)).backward()
    assert want.grad is not None
    expect(want.grad.numpy(), everywhere(ctx, {S: len(X)}, {"x": X}))


def test_branches_of_a_definition():
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        w = rc.nn.Parameter(rc.constant(2.0), domain=(i,), name="w")
        y = rc.like(rc.f32, domain=(i, t))
        y[i, t == 2] = 0.0
        y[i, t] = (w * (rc.value(t) - 2)).abs().sqrt()
        y[i, 0:T].sum().backward()
        rc.output(grad=w.grad)
    slope = sum(0.5 * abs(k - 2) ** 0.5 / 2**0.5 for k in (0, 1, 3, 4))
    expect(np.full(2, slope), everywhere(ctx, {I: 2, T: 5}))


def test_what_only_an_index_leaves_out():
    """x[0] is 0, and only the logarithm at the last point is read."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x") * 1.0
        y = x.log()
        y[T - 1].backward(wrt=[x])
        rc.output(grad=x.grad)
    x = np.array([0, -1, 0, 4], np.float32)
    expect(np.array([0, 0, 0, 0.25]), everywhere(ctx, {T: 4}, {"x": x}))


def test_shifted_reads():
    """h at 0 and at odd points goes through a logarithm that no branch takes."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x") * 1.0
        z = (x - 1.0).log()
        h = rc.like(rc.f32, domain=(t,))
        h[0] = x
        h[t % 2 == 0] = h[t - 1] + z[t - 1]
        h[t] = h[t - 1] * x
        h[T - 1].backward(wrt=[x])
        rc.output(grad=x.grad)
    given = np.array([1, 3, 1, 2, 1], np.float32)
    x = torch.tensor(given, requires_grad=True)
    h = x[0]
    for k in range(1, 5):
        h = h + (x[k - 1] - 1).log() if k % 2 == 0 else h * x[k]
    h.backward()
    assert x.grad is not None
    expect(x.grad.numpy(), everywhere(ctx, {T: 5}, {"x": given}))


def test_a_choice_by_data_is_that_of_torch():
    """0 · inf is NaN in torch, too; a value that is safe on the other side mends it."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x") * 1.0
        rc.where(x > 0, x.log(), 0.0)[0:T].sum().backward(wrt=[x])
        grad = x.grad
        rc.where(x > 0, rc.where(x > 0, x, 1.0).log(), 0.0)[0:T].sum().backward(wrt=[x])
        rc.output(grad=grad, safe=x.grad)
    given = np.array([1, 0, -1, 2], np.float32)
    want = torch.tensor(given, requires_grad=True)
    torch.where(want > 0, want.log(), torch.tensor(0.0)).sum().backward()
    assert want.grad is not None
    found = everywhere(ctx, {T: 4}, {"x": given})
    expect(want.grad.numpy(), found)
    for results in found.values():
        np.testing.assert_array_equal(results["safe"], [1, 0, 0, 0.5])
