"""A run for which there is no memory says so, in the same words on all backends."""

from __future__ import annotations

import pytest

import recurra as rc
from recurra.errors import PlanError


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_more_than_there_is(backend: str) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.normal((b, t), (1000,))
        rc.output(s=x[0:B, 0:T].exp().sort(axis=0).sum())
    with pytest.raises(PlanError, match="there is not enough memory for this run") as error:
        ctx.run({B: 100_000, T: 100_000}, backend=backend)
    assert "its stores take" in str(error.value)
    assert 'compile(.., memory="' in str(error.value)


def test_errors_of_users_are_theirs() -> None:
    def fails(x: object) -> object:
        raise RuntimeError("this has another cause")

    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        rc.output(y=rc.call(fails, rc.f32, rc.value(t), domain=(t,)))
    with pytest.raises(RuntimeError, match="this has another cause"):
        ctx.run({T: 2}, backend="numpy")
