"""Sizes that are one number, written in two ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS
from recurra.errors import ShapeError


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_of_ranges(backend: str) -> None:
    """Of a window that is cut at the end: min(N, T - t) elements, or min(t + N, T) - t."""
    with (ctx := rc.Context(dims="t")) as ((t, T),):
        N = rc.bound("N")
        p = rc.nn.Parameter(rc.constant(1.0), domain=(), name="p")
        x = p * (rc.value(t) * 0.3 + 0.5)
        near = x[t : rc.min(t + N, T)]
        before = rc.concat([rc.ones(1), near.cumprod()]).cut(0, rc.min(N, T - t))
        y, z = (before * near).sum(), before @ near
        chosen = rc.where(before > 0.2, near, 0.0).sum()
        (y + z + chosen)[0:T].sum().backward()
        rc.output(y=y, z=z, chosen=chosen, slope=p.grad)
    got = ctx.run({T: 6, N: 3}, backend=backend)

    q = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    x = q * (torch.arange(6) * 0.3 + 0.5)
    windows = [x[k : k + 3] for k in range(6)]
    ahead = [torch.cat([torch.ones(1), s.cumprod(0)])[: len(s)] for s in windows]
    want = torch.stack([(w * s).sum() for w, s in zip(ahead, windows, strict=True)])
    kept = [torch.where(w > 0.2, s, 0.0).sum() for w, s in zip(ahead, windows, strict=True)]
    (2 * want + torch.stack(kept)).sum().backward()
    assert q.grad is not None
    for name in ("y", "z"):
        np.testing.assert_allclose(got[name], want.detach(), rtol=1e-5)
    np.testing.assert_allclose(got["chosen"], torch.stack(kept).detach(), rtol=1e-5)
    np.testing.assert_allclose(got["slope"], q.grad, rtol=1e-5)


def test_sizes_that_differ_somewhere_are_refused() -> None:
    with rc.Context(dims="t") as ((t, T),):
        x, N = rc.value(t) * 1.0, rc.bound("N")
        near = x[t : rc.min(t + N, T)]
        with pytest.raises(ShapeError, match="do not match"):
            near * near.cut(0, rc.min(N, T - t - 1))
        with pytest.raises(ShapeError, match="do not match"):
            near @ x[0 : rc.min(N, T)]
