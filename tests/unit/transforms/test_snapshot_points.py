"""Points that are read long after they are made: as much is kept as is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc

POINTS, ELEMENTS = 40, 300
Write = Callable[[Any, Any], Any]
WRITTEN: dict[str, tuple[Write, Callable[[np.ndarray], Any]]] = {
    "the middle": (lambda x, T: x[T // 2] * 2.0, lambda x: 2 * x[20]),
    "several": (lambda x, T: x[T // 4] * x[T // 2] + x[T - 1], lambda x: x[10] * x[20] + x[39]),
    "at a bound": (lambda x, T: x[T - 17] * 2.0, lambda x: 2 * x[23]),
    "a few in a row": (lambda x, T: x[5:8].exp().sum(axis=0), lambda x: np.exp(x[5:8]).sum(0)),
    "beside the end": (lambda x, T: x[T - 2 : T].max() + x[7], lambda x: x[38:].max() + x[7]),
}


def points(backward: bool) -> np.ndarray:
    steps = np.arange(POINTS)
    x = 0.9 ** (steps[::-1] if backward else steps)
    return x[:, None] * np.ones(ELEMENTS)


@pytest.mark.parametrize(("write", "want"), WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_what_is_read_late_is_kept_alone(
    write: Write, want: Callable[[np.ndarray], Any], backward: bool, backend: str
) -> None:
    """All points from it to the end of the loop were kept."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.like(rc.f32[ELEMENTS], (t,))
        if backward:
            x[T - 1] = 1.0
            x[t] = x[t + 1] * 0.9
        else:
            x[0] = 1.0
            x[t] = x[t - 1] * 0.9
        rc.output(y=write(x, T))
    program = ctx.compile({T: POINTS}, backend=backend)
    np.testing.assert_allclose(program.run()["y"], want(points(backward)), rtol=1e-4)
    assert program.memory.nbytes < 13 * ELEMENTS * 4, "bytes of thirteen points"


def test_a_point_of_one_of_several_loops() -> None:
    """A row, a column and a point of a table, and a point that later steps read again."""
    ctx = rc.Context(dims="s t")
    with ctx as ((s, S), (t, T)):
        x = rc.like(rc.f32[ELEMENTS], (s, t))
        x[0, 0] = 1.0
        x[s, 0] = x[s - 1, T - 1] * 1.1
        x[s, t] = x[s, t - 1] * 0.9
        z = rc.like(rc.f32[ELEMENTS], (t,))
        z[T - 1] = x[1, 3]
        z[t] = z[t + 1] * 0.5 + x[S // 2, 4]
        rc.output(point=x[S // 2, T // 2] * 2.0, column=x[s, T // 2].sum(), z=z[0] * 1.0)
    program = ctx.compile({S: 6, T: 8}, backend="numpy")
    step = np.full((6, 8), 0.9)
    step[1:, 0], step[0, 0] = 1.1, 1.0
    x = step.cumprod().reshape(6, 8)
    z = x[1, 3]
    for _ in range(7):
        z = z * 0.5 + x[3, 4]
    got = program.run()
    np.testing.assert_allclose(got["point"], np.full(ELEMENTS, 2 * x[3, 4]), rtol=1e-5)
    np.testing.assert_allclose(got["column"], ELEMENTS * x[:, 4], rtol=1e-5)
    np.testing.assert_allclose(got["z"], np.full(ELEMENTS, z), rtol=1e-5)
    assert program.memory.nbytes < 20 * ELEMENTS * 4, "bytes of twenty of 48 points"
