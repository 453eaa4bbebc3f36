"""rc.until without `max`: rows go on until the data end them, where nothing keeps every point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import DomainError

LIMITS = np.array([3.0, 7.0, 5.0], np.float32)


def counting(**most: int) -> tuple[rc.Context, dict[Any, Any], Any]:
    """Row b counts from 0 up to LIMITS[b] - 1."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        limit = rc.constant(LIMITS).index(b)
        x = rc.like(rc.f32, domain=(b, t))
        x[b, 0] = limit * 0
        x[b, t + 1] = x + 1.0
        bounds = {B: 3, T: rc.until(x + 1.5 > limit, **most)}
    return ctx, bounds, (b, B, t, T, x)


def summed(**most: int) -> tuple[rc.Context, dict[Any, Any]]:
    ctx, bounds, (b, B, t, T, x) = counting(**most)
    with ctx:
        ahead = x[b, t : rc.min(t + 3, T)].discounted_sum(0.9)
        rc.output(
            total=x[b, 0:T].sum(),
            mean=(ahead * x)[0:B, 0:T].mean(),
            last=x[b, T - 1],
            length=rc.value(T),
            highest=x[b, 0:T].max(),
        )
    return ctx, bounds


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_the_same_as_with_a_limit(backend: str) -> None:
    ctx, bounds = summed(max=9)
    want = ctx.compile(bounds, backend=backend).run()
    ctx, bounds = summed()
    program = ctx.compile(bounds, backend=backend)
    assert sum(row["bytes"] for row in program.store_rows) < 1000
    got = program.run()
    np.testing.assert_array_equal(got["length"], LIMITS)
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-6, err_msg=name)


def refusal(write: Any) -> str:
    ctx, bounds, parts = counting()
    with ctx:
        write(*parts)
    with pytest.raises(DomainError) as error:
        ctx.compile(bounds, backend="numpy")
    return str(error.value)


def test_what_is_kept_is_named() -> None:
    text = refusal(lambda b, B, t, T, x: rc.output(x=x))
    assert text.startswith("x_alive is kept at every point of rows that have no limit\n")
    assert "it is put out, and until(" in text
    assert "rc.until(.., max=500)" in text
    text = refusal(lambda b, B, t, T, x: rc.output(g=(x[b, t:T].sum() * x)[0:B, 0:T].mean()))
    assert text.startswith("x is kept at every point of rows that have no limit\n")
    assert "x[b, t + 1] = x + 1.0" in text or "test_endless_rows.py" in text
    text = refusal(lambda b, B, t, T, x: rc.output(s=x[b, 0:T].softmax().max()))
    assert "is kept at every point of rows that have no limit" in text


def test_every_point_cannot_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, bounds = summed()
    monkeypatch.setenv("RECURRA_CHECK", "1")
    with pytest.raises(DomainError, match="RECURRA_CHECK=1 is for rows that have a limit"):
        ctx.compile(bounds, backend="numpy")
