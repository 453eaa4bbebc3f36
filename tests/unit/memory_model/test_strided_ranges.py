"""Ranges in steps: what is folded of them is not kept for all points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc

POINTS = 100
Write = Callable[[Any, Any], Any]
WRITTEN: dict[str, tuple[Write, Callable[[np.ndarray], Any]]] = {
    "every other": (lambda x, T: x[0:T:2].sum(), lambda x: x[::2].sum()),
    "every third from the second": (lambda x, T: x[1:T:3].mean(), lambda x: x[1::3].mean()),
    "the largest": (lambda x, T: x[2 : T - 1 : 5].max(), lambda x: x[2:-1:5].max()),
    "a product": (lambda x, T: x[0:T:7].prod(axis=0), lambda x: x[::7].prod(axis=0)),
    "is one of them": (lambda x, T: (x > 1.2)[3:T:4].any(), lambda x: (x > 1.2)[3::4].any()),
    "of few": (lambda x, T: x[0 : T : 2 * POINTS].sum(axis=0), lambda x: x[0]),
}


def program(write: Write) -> tuple[rc.Context, Any]:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.like(rc.f32[64], (t,))
        x[0] = 1.0
        x[t] = x[t - 1] * 0.9 + rc.value(t) * 0.01
        rc.output(y=write(x, T))
    return ctx, {T: POINTS}


def points() -> np.ndarray:
    x = np.ones((POINTS, 64))
    for t in range(1, POINTS):
        x[t] = x[t - 1] * 0.9 + t * 0.01
    return x


@pytest.mark.parametrize(("write", "want"), WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_what_is_folded_and_how_much_is_kept(
    write: Write, want: Callable[[np.ndarray], Any], backend: str
) -> None:
    """All points were kept, and those of the range twice more."""
    ctx, bounds = program(write)
    compiled = ctx.compile(bounds, backend=backend)
    np.testing.assert_allclose(compiled.run()["y"], want(points()), rtol=1e-4)
    assert compiled.memory.nbytes < 20 * 64 * 4, "bytes of twenty points"
