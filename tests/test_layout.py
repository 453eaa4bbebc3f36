"""Where batch axes go: last, if the batch is long and its layers are no wider than that."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from recurra.runtime.executable import Executable


def learner(rows: int, width: int, **options: bool) -> Executable:
    with (ctx := rc.Context(num_dims=2)) as ((b, B), (t, T)):
        net = rc.nn.MLP([4, width, 4], ())
        x = rc.like(rc.f32[4], domain=(b, t))
        x[b, 0] = rc.uniform((b,), (4,))
        x[b, t + 1] = (x + net(x)).tanh()
        rc.output(x=x[b, T - 1])
    return ctx.compile({B: rows, T: 3}, backend="numpy", **options)


@pytest.mark.parametrize(
    ("rows", "width", "place"),
    [
        (32, 16, "first"),
        (64, 32, "last"),
        (64, 128, "first"),
        (128, 256, "first"),
        (512, 256, "last"),
    ],
)
def test_by_rows_and_width(rows: int, width: int, place: str) -> None:
    found = learner(rows, width).compiled.stages.decisions
    assert any(f"b: {place} axis of " in d and f"{width} wide, of {rows} rows" in d for d in found)


def test_axes_change_no_answer() -> None:
    found = [learner(64, 8, last=last).run(seed=3)["x"] for last in (True, False)]
    np.testing.assert_allclose(*found, rtol=1e-5)
