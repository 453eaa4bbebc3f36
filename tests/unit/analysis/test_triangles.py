"""Points that nobody asks for need not be readable, also where those asked for are no box."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS

N, K = 5, 3
LAGS = [[n - k + 1.0 if k <= n else -1.0 for k in range(K)] for n in range(N)]


def chosen(n: Any, k: Any, **_: Any) -> Mapping[str, Any]:
    x = rc.value(n) * 1.0
    return {"y": rc.where(k <= n, x[n - k] + 1.0, -1.0)}


def in_branches(n: Any, k: Any, **_: Any) -> Mapping[str, Any]:
    x, y = rc.value(n) * 1.0, rc.like(rc.f32, (n, k))
    y[k <= n, n, k] = x[n - k] + 1.0
    y[n, k] = -1.0
    return {"y": y}


def in_a_range(n: Any, k: Any, K: Any, **_: Any) -> Mapping[str, Any]:
    x = rc.value(n) * 1.0
    return {"y": (x[n - k] + 1.0)[n, 0 : rc.min(n + 1, K)].sum()}


SUMS = [sum(x for x in row if x > 0) for row in LAGS]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "want"), [(chosen, LAGS), (in_branches, LAGS), (in_a_range, SUMS)]
)
def test_a_guard_over_two_dims(
    program: Callable[..., Mapping[str, Any]], want: list[Any], backend: str
) -> None:
    ctx = rc.Context(dims="n k")
    with ctx as ((n, N_), (k, K_)):
        rc.output(**program(n=n, k=k, N=N_, K=K_))
    found = ctx.run({N_: N, K_: K}, backend=backend)["y"]
    np.testing.assert_array_equal(found, np.array(want, np.float32))


def test_a_point_that_is_asked_for_is_refused_as_ever() -> None:
    ctx = rc.Context(dims="n k")
    with ctx as ((n, N_), (k, K_)):
        x = rc.value(n) * 1.0
        rc.output(y=rc.where(k <= n + 1, x[n - k] + 1.0, -1.0))
    with pytest.raises(rc.RecurraError, match=r"x\[n-k\] reads before the start of n"):
        ctx.compile({N_: N, K_: K}, backend="numpy")


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_inside_algorithm_and_its_slope(backend: str, guarded: bool) -> None:
    """Spans d[n, i] of n + 1 words from i on, each of two parts (Baker, 1979)."""
    ctx = rc.Context(dims="n i k")
    with ctx as ((n, N_), (i, I), (k, K_)):
        s = rc.input(rc.f32, (i,), name="s")
        d = rc.like(rc.f32, domain=(n, i))
        rest = d[n - k - 1, i + k + 1]
        rest = rc.where((n - k >= 1) & (i + k + 1 < I), rest, 0.0) if guarded else rest
        part = d[k, i] + rest
        d[0, i] = s
        d[n, i < I - n] = s + part[n, i, 0:n].logsumexp()
        d[n, i] = -1e9
        z = d[N_ - 1, 0]
        z.backward(wrt=[s])
        rc.output(z=z, slope=s.grad)
    words = np.random.default_rng(0).standard_normal(N).astype("f4")
    found = ctx.run({N_: N, I: N, K_: N}, inputs={"s": words}, backend=backend)
    t = torch.tensor(words, requires_grad=True)
    spans = {(0, i): t[i] for i in range(N)}
    for m in range(1, N):
        for i in range(N - m):
            parts = [spans[k, i] + spans[m - k - 1, i + k + 1] for k in range(m)]
            spans[m, i] = t[i] + torch.logsumexp(torch.stack(parts), 0)
    spans[N - 1, 0].backward()
    assert t.grad is not None
    np.testing.assert_allclose(found["z"], spans[N - 1, 0].item(), rtol=1e-5)
    np.testing.assert_allclose(found["slope"], t.grad.numpy(), rtol=1e-4, atol=1e-6)
