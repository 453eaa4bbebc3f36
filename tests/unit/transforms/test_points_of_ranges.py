"""What is done to the elements of a range is done point by point, in the loop that makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS
from program_checks import small_points

ROWS, POINTS, ELEMENTS = 2, 40, 1024
HELD = POINTS * ELEMENTS * 4  # bytes of all points of one row
Write = Callable[[Any, Any, Any], Any]
WRITTEN: dict[str, tuple[Write, Callable[[np.ndarray, np.ndarray], Any]]] = {
    "squares": (
        lambda x, z, T: (x[0:T] - z[0:T]).square().mean(),
        lambda x, z: np.mean((x - z) ** 2),
    ),
    "from the fifth on": (lambda x, z, T: x[5:T].norm(), lambda x, z: np.linalg.norm(x[5:])),
    "but the ends": (
        lambda x, z, T: (x[3 : T - 2] * 2.0).exp().sum(axis=0).max(),
        lambda x, z: np.exp(x[3:-2] * 2).sum(0).max(),
    ),
    "the farthest": (lambda x, z, T: x[5:T].abs().max(), lambda x, z: np.abs(x[5:]).max()),
    "whether any": (
        lambda x, z, T: (x[0:T] > z[0:T] + 0.9).any(),
        lambda x, z: (x > z + 0.9).any(),
    ),
}


def written(write: Write, gradient: bool) -> tuple[Any, dict[Any, int]]:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        z = rc.input(rc.f32[ELEMENTS], (t,), name="z")
        x = rc.like(rc.f32[ELEMENTS], (t,))
        x[0] = z[0]
        x[t] = (x[t - 1] + z).sin()
        y = write(x, z, T)
        if gradient:
            y.backward(wrt=[z])
            rc.output(y=y, slope=z.grad)
        else:
            rc.output(y=y)
    return ctx, {T: POINTS}


def by_hand(z: np.ndarray) -> np.ndarray:
    x = [z[0]]
    for at in z[1:]:
        x.append(np.sin(x[-1] + at))
    return np.array(x)


@pytest.mark.parametrize(("write", "want"), WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_range_is_made_into_is_not_kept(
    write: Write, want: Callable[[np.ndarray, np.ndarray], Any], backend: str
) -> None:
    """All points were kept, twice or three times."""
    ctx, sizes = written(write, gradient=False)
    z = np.random.default_rng(3).standard_normal((POINTS, ELEMENTS), "f4") * 0.1
    program = ctx.compile(sizes, backend=backend)
    np.testing.assert_allclose(program.run(inputs={"z": z})["y"], want(by_hand(z), z), rtol=1e-4)
    if backend == "numpy":  # the others count what a launch takes
        assert program.memory.nbytes < HELD + 16 * ELEMENTS * 4, "what is given, and few points"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["squares", "from the fifth on", "but the ends"])
def test_gradients_through_ranges(name: str, backend: str) -> None:
    """As of the same program with the ranges as they are."""
    z = np.random.default_rng(3).standard_normal((POINTS, ELEMENTS), "f4") * 0.1
    ctx, sizes = written(WRITTEN[name][0], gradient=True)
    got = ctx.run(sizes, inputs={"z": z}, backend=backend)

    with small_points(1 << 40):
        want = ctx.run(sizes, inputs={"z": z}, backend="numpy")
    np.testing.assert_allclose(got["slope"], want["slope"], rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranges_of_two_dims(backend: str) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        z = rc.input(rc.f32[ELEMENTS], (b, t), name="z")
        x = rc.like(rc.f32[ELEMENTS], (b, t))
        x[b, 0] = z[b, 0]
        x[b, t] = x[b, t - 1] * 0.5 + z
        rc.output(
            all=(x[0:B, 0:T] - 1.0).square().sum(),
            rows=(x[b, 2:T] * z[b, 2:T]).sum(),
            last=(x[0:B, T - 1] - z[0:B, 0]).square().sum(),
        )
    z = np.random.default_rng(3).standard_normal((ROWS, POINTS, ELEMENTS), "f4")
    x = np.empty_like(z)
    for at in range(POINTS):
        x[:, at] = (0.5 * x[:, at - 1] if at else 0.0) + z[:, at]
    got = ctx.run({B: ROWS, T: POINTS}, inputs={"z": z}, backend=backend)
    np.testing.assert_allclose(got["all"], ((x - 1) ** 2).sum(), rtol=1e-4)
    np.testing.assert_allclose(got["rows"], (x * z)[:, 2:].sum((1, 2)), rtol=1e-4)
    np.testing.assert_allclose(got["last"], ((x[:, -1] - z[:, 0]) ** 2).sum(), rtol=1e-4)
