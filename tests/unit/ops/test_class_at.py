"""The class at a uniform number: by the weights, and never one that weighs nothing."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from recurra.ir.types import Type

ROWS = 256
EXTREMES = (0.0, 2.0**-23, 0.5, 1 - 2.0**-23)
BACKENDS = ("numpy", "jax", "torch")


@cache
def drawing(classes: int, backend: str):
    ctx = rc.Context(num_dims=1)
    with ctx as ((b, B),):
        w, u = rc.input(rc.f32[classes], (b,), name="w"), rc.input(rc.f32, (b,), name="u")
        rc.output(k=rc.nn.class_at(w, u), sums=w.cumsum())
    return ctx.compile({B: ROWS}, backend=backend)


def drawn(w: np.ndarray, u: np.ndarray, backend: str) -> np.ndarray:
    return drawing(w.shape[1], backend).run(inputs={"w": w, "u": u})["k"]


def weights(classes: int, seed: int) -> np.ndarray:
    """f32[ROWS, classes], each of its own share of zeros and its own scale; never all zero."""
    rng = np.random.default_rng(seed)
    w = rng.exponential(size=(ROWS, classes)) ** rng.integers(1, 6, (ROWS, 1))
    w[rng.random(w.shape) < rng.random((ROWS, 1))] = 0
    w[np.arange(ROWS), rng.integers(classes, size=ROWS)] = 1
    w[::2] /= w[::2].sum(1, keepdims=True)
    return w.astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("classes", [1, 6, 300])
def test_no_class_without_weight_is_drawn(classes: int, backend: str) -> None:
    """Also where u is one of the sums as this backend rounds them, or beside it."""
    w = weights(classes, classes)
    for u in EXTREMES:
        at = np.full(ROWS, u, np.float32)
        assert (w[np.arange(ROWS), drawn(w, at, backend)] > 0).all()
    sums = drawing(classes, backend).run(inputs={"w": w, "u": at})["sums"]
    rng = np.random.default_rng(0)
    for _ in range(20):
        near = sums[np.arange(ROWS), rng.integers(classes, size=ROWS)]
        for u in (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(2))):
            at = np.clip(u, 0, 1 - 2.0**-23).astype(np.float32)
            assert (w[np.arange(ROWS), drawn(w, at, backend)] > 0).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(BACKENDS))
def test_it_is_the_class_of_the_exact_sums(seed: int, backend: str) -> None:
    """But for u so near a border that rounding may decide."""
    w, rng = weights(6, seed), np.random.default_rng(seed)
    u = (rng.integers(0, 2**23, ROWS) * 2.0**-23).astype(np.float32)
    got = drawn(w, u, backend)
    sums = w.astype(np.float64).cumsum(1)
    share = sums / sums[:, -1:]
    below = np.where(got, share[np.arange(ROWS), got - 1], 0)
    assert (below <= u + 1e-6).all()
    assert (u <= share[np.arange(ROWS), got] + 1e-6).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_policy_of_nans_draws_a_class_that_there_is(backend: str) -> None:
    w = np.full((ROWS, 6), np.nan, np.float32)
    at = np.linspace(0, 0.99, ROWS, dtype=np.float32)
    assert set(drawn(w, at, backend)) <= set(range(6))


def test_half_floats_do_not_round_u_up_to_the_whole() -> None:
    ctx = rc.Context(num_dims=1)
    with ctx as ((b, B),):
        w, u = rc.input(Type("f16", (2,)), (b,), name="w"), rc.input(rc.f32, (b,), name="u")
        rc.output(k=rc.nn.class_at(w, u))
    given = {"w": np.array([[1, 0]], np.float16), "u": np.array([1 - 2.0**-23], np.float32)}
    assert ctx.compile({B: 1}, backend="numpy").run(inputs=given)["k"] == [0]
