"""Dims beside what are no whole numbers: compared as numbers are, or told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS
from recurra.errors import DomainError, RecurraError

CONDITIONS: dict[str, Callable[[Any], Any]] = {
    "below a fraction": lambda t: t < 1.5,
    "a float that is whole": lambda t: t == 2.0,
    "another one": lambda t: t != np.float32(2.0),
    "from a number of NumPy's on": lambda t: t >= np.int64(3),
    "on the left": lambda t: 1.5 >= t,  # noqa: SIM300
    "of an expression": lambda t: 2 * t - 1 > 2.5,
}


@pytest.mark.parametrize("kind", CONDITIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("hasty_xla")
def test_comparisons_with_numbers(kind: str, backend: str) -> None:
    """A dim that equals a float was False everywhere, silently."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(y=rc.where(CONDITIONS[kind](t), rc.value(t), -1.0))
    at = np.arange(5)
    found = ctx.run({T: 5}, backend=backend)["y"]
    np.testing.assert_array_equal(found, np.where(CONDITIONS[kind](at), at, -1.0))


def test_comparisons_with_arrays() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(y=(t < np.array([0.5, 2.0, 3.5])).cast("i32"))
    found = ctx.run({T: 4})["y"]
    np.testing.assert_array_equal(found, np.arange(4)[:, None] < np.array([0.5, 2.0, 3.5]))


def test_a_dim_is_no_text() -> None:
    with rc.Context(dims="t") as ((t, T),):
        assert t != "t"
        assert t not in ["t", None]
        with pytest.raises(RecurraError, match="no tensor has the type"):
            _ = t < "a"  # pyright: ignore[reportOperatorIssue]


@pytest.mark.parametrize(
    ("write", "told"), [(lambda t: t[3], "t has no elements"), (len, "t has no length")]
)
def test_a_dim_is_no_sequence(write: Callable[[Any], Any], told: str) -> None:
    with rc.Context(dims="t") as ((t, T),), pytest.raises(DomainError, match=told):
        write(t)


NUMPYS = {
    "a place behind": (lambda t, T: rc.value(t)[rc.max(t - np.int64(1), 0)], [0, 0, 1, 2]),
    "a place from the left": (lambda t, T: rc.value(t)[np.int64(3) - t], [3, 2, 1, 0]),
    "the last": (lambda t, T: rc.value(t)[T - np.int32(1)], 3),
    "a step": (lambda t, T: rc.value(t)[0 : T : np.int64(2)], [0, 2]),
    "a condition": (lambda t, T: rc.where(np.int64(2) > t, 1.0, 0.0), [1, 1, 0, 0]),
    "in turns": (lambda t, T: rc.where(t % np.uint8(2) == np.int64(1), 1.0, 0.0), [0, 1, 0, 1]),
    "a half of NumPy's": (lambda t, T: np.float64(0.5) * t, [0, 0.5, 1, 1.5]),
    "a power of NumPy's": (lambda t, T: np.float32(0.5) ** t, [1, 0.5, 0.25, 0.125]),
    "a quotient": (lambda t, T: np.float64(2.0) / (t + 1), [2, 1, 2 / 3, 0.5]),
    "an array": (lambda t, T: np.array([1.0, 2.0]) + t, [[1, 2], [2, 3], [3, 4], [4, 5]]),
    "an array compared": (lambda t, T: rc.where(np.array([1.5]) < t, 1, 0), [[0], [0], [1], [1]]),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPYS)
def test_numbers_of_numpy_beside_a_dim_are_numbers(name: str) -> None:
    write, want = NUMPYS[name]
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        rc.output(y=write(t, T))
    np.testing.assert_allclose(ctx.run({T: 4}, backend="numpy")["y"], want, rtol=1e-6)


def test_points_defined_by_numbers_of_numpy() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        y = rc.like(rc.f32, (t,))
        y[t < np.int64(1)] = 1.0
        y[t + np.int64(1)] = y * 2.0
        rc.output(y=y)
    np.testing.assert_array_equal(ctx.run({T: 4}, backend="numpy")["y"], [1, 2, 4, 8])
