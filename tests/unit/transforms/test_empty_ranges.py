"""Ranges that are empty at every point there is: rows of one step, read ahead or behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.reference import interpreter

RANGES: dict[str, Callable[[Any, Any], slice]] = {
    "t+1:T": lambda t, T: slice(t + 1, T),
    "t+1:t+3": lambda t, T: slice(t + 1, rc.min(t + 3, T)),
    "0:t": lambda t, T: slice(0, t),
}
USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a product": lambda r, s, w: rc.einsum("ka,ka->", r, s),
    "weights": lambda r, s, w: rc.einsum("ka,a->k", r, w).tanh().sum(),
    "pairs": lambda r, s, w: rc.einsum("ka,la->kl", r, s).tanh().sum(),
    "three": lambda r, s, w: rc.einsum("kl,la->ka", rc.einsum("ka,la->kl", r, s), r).sum(),
}


def check(span: str, use: str, backend: str, by_data: bool) -> None:
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        w = rc.constant(np.ones(3, np.float32))
        x = rc.uniform((b, t), (3,)).tanh() * w
        at = RANGES[span](t, T)
        y = USES[use](x[b, at], (x * 2.0)[b, at], w)
        (y + x.sum())[0:B, 0:T].sum().backward(wrt=[w])
        rc.output(y=y, slope=w.grad)
        end = rc.until(rc.uniform((b, t)) > 0.5, max=1) if by_data else 1
    program = ctx.compile({B: 2, T: end}, backend=backend)
    want = interpreter.run(program.source_graph, program.sizes, seed=1)
    for name, found in program.run(seed=1).items():
        np.testing.assert_allclose(found, want[program.logs[name]], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("by_data", [True, False])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("span", RANGES)
def test_what_is_read_of_none_is_zero(span: str, use: str, by_data: bool) -> None:
    check(span, use, "numpy", by_data)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("use", USES)
def test_compiled(use: str, backend: str) -> None:
    check("t+1:T", use, backend, by_data=True)


HIDDEN = {
    "a quotient": lambda t, T, x: 1.0 / rc.value(t),
    "a power": lambda t, T, x: rc.value(t) ** -1.0,
    "a logarithm": lambda t, T, x: rc.value(t).log() + (rc.value(t) - 0.5).sqrt(),
    "too much": lambda t, T, x: (80.0 / (rc.value(t) + 1e-9)).exp(),
    "a mean before": lambda t, T, x: x[0:t].mean(),
    "shares": lambda t, T, x: (x[0:t] / x[0:t].sum()).square().sum(),
    "whole numbers": lambda t, T, x: rc.value(T, "i32") // rc.value(t, "i32") * 1.0,
    "a cast": lambda t, T, x: (1.0 / rc.value(t)).cast("i32") * 1.0,
}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_not_chosen_is_silent(name: str, backend: str) -> None:
    """Warnings are errors here; only t = 0 would make one."""
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.uniform((t,)) + 0.5
        y = HIDDEN[name](t, T, x)
        by_branch = rc.like(rc.f32, (t,))
        by_branch[0] = 7.0
        by_branch[t] = y
        rc.output(a=rc.where(t > 0, y, 7.0), b=rc.where(rc.value(t) > 0, y, 7.0), c=by_branch)
    got = ctx.run({T: 4}, backend=backend)
    for key in "abc":
        assert got[key][0] == 7.0
        assert np.isfinite(got[key]).all()
        np.testing.assert_array_equal(got[key], got["a"])
