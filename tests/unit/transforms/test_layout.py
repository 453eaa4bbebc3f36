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
    found = [learner(64, 8, batch_last=last).run(seed=3)["x"] for last in (True, False)]
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_product_of_windows_past_the_end(backend: str) -> None:
    """The last windows hold fewer points; what lies behind them is of points before."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x, z = rc.input(rc.f32, (b, t), "x"), rc.input(rc.f32, (b, t), "z")
        ahead = slice(t, rc.min(t + 3, T))
        both = rc.einsum("k,k->", (x + 1.0)[b, ahead], (z * 0.5)[b, ahead])
        rc.output(both=both.tanh())
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(3, 7)).astype(np.float32) for name in "xz"}
    program = ctx.compile({B: 3, T: 7}, backend=backend)
    windows = [s for s in program.compiled.plan.stores.values() if s.tiled is not None]
    assert len(windows) == 2
    x, z = given["x"] + 1.0, given["z"] * 0.5
    want = [
        [(r[k : k + 3] * q[k : k + 3]).sum() for k in range(7)] for r, q in zip(x, z, strict=True)
    ]
    np.testing.assert_allclose(program.run(inputs=given)["both"], np.tanh(want), rtol=1e-5)
