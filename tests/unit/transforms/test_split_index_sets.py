"""Definitions by branches along dims that become axes: one concatenation, no choice by element."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from recurra.schedule.tree import Loop


def stencil(n: int, steps: int) -> np.ndarray:
    u = np.arange(n, dtype="f4")[:, None] * np.float32(0.1) + np.zeros((n, n), "f4")
    for _ in range(steps - 1):
        new = np.zeros_like(u)
        new[1:-1, -1] = 1
        new[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        u = new
    return u


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_a_stencil_with_edges_runs_sweep_by_sweep(backend: str, n: int) -> None:
    ctx = rc.Context(dims="t i j")
    with ctx as ((t, T), (i, I), (j, J)):
        u = rc.like(rc.f32, (t, i, j))
        u[0, i, j] = rc.value(i) * 0.1
        u[t, 0, j] = 0.0
        u[t, I - 1, j] = 0.0
        u[t, i, 0] = 0.0
        u[t, i, J - 1] = 1.0
        u[t, i, j] = 0.25 * (
            u[t - 1, i - 1, j] + u[t - 1, i + 1, j] + u[t - 1, i, j - 1] + u[t - 1, i, j + 1]
        )
        rc.output(u=u[T - 1, i, j])
    program = ctx.compile({T: 5, I: n, J: n}, backend=backend)
    np.testing.assert_allclose(program.run()["u"], stencil(n, 5), rtol=1e-5)
    loops = [x.dim for x in program.compiled.schedule.items if isinstance(x, Loop)]
    assert set(loops) == ({"t"} if n > 2 else set())  # of two lines, all are edges
