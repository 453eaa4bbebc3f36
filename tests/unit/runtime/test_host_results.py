"""Results of a host call: those that are read go to the backend, in the sizes that were said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.backends.numpy.backend import NumpyBackend
from recurra.errors import ShapeError


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_view_backward_and_columns_first(backend: str) -> None:
    """PyTorch took no array with negative strides."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.value(t) * rc.constant([1.0, 2.0, 3.0])
        rc.output(
            back=rc.call(lambda v: v[::-1], rc.f32[3], x),
            columns=rc.call(lambda v: np.asfortranarray(np.outer(v, v + 1)), rc.f32[3, 3], x),
        )
    got = ctx.run({T: 2}, backend=backend)
    v = np.arange(2.0)[:, None] * [1, 2, 3]
    np.testing.assert_array_equal(got["back"], v[:, ::-1])
    np.testing.assert_array_equal(got["columns"], v[:, :, None] * (v + 1)[:, None])


def test_one_result_where_there_are_to_be_two() -> None:
    """TypeError: iteration over a 0-d array."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x, y = rc.call(lambda v: v, (rc.f32, rc.f32), rc.value(t))
        rc.output(x=x, y=y)
    with pytest.raises(ShapeError, match=r"gives one result, not 2\n.*\n.*to give f32\[\], f32"):
        ctx.run({T: 2}, backend="numpy")


def measured(steps: list[int], given: Callable[[int], tuple[Any, ...]]) -> rc.Executable:
    """A call of three results at every step, of which the second and third are not all read."""

    def look(t: Any) -> tuple[Any, ...]:
        steps.append(int(t))
        return given(int(t))

    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x, _, z = rc.call(look, (rc.f32, rc.f32[50], rc.f32[2]), rc.value(t))
        rc.output(x=x, z=z)
    return ctx.compile({T: 4}, backend="numpy")


class Counting(NumpyBackend):
    """Counts what it is given, by shape."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, ...]] = []

    def given(self, x: Any) -> Any:
        self.taken.append(np.shape(x))
        return super().given(x)


def results(t: int) -> tuple[Any, ...]:
    return np.float32(t), np.full(50, t, "f4"), np.array([t, -t], "f4")


def test_results_that_nobody_reads_stay_where_they_are() -> None:
    steps: list[int] = []
    backend = Counting()
    run = measured(steps, results).execution.using(backend=backend).steps()
    while True:
        try:
            next(run)
        except StopIteration as end:
            made = end.value
            break
    assert steps == [0, 1, 2, 3]
    np.testing.assert_array_equal(made["x"], [0, 1, 2, 3])
    np.testing.assert_array_equal(made["z"], [[0, 0], [1, -1], [2, -2], [3, -3]])
    assert backend.taken.count((50,)) == 1  # one for all steps, which nothing reads
    assert backend.taken.count((2,)) == 4


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_result_of_another_size_is_refused_at_its_step(wrong: int) -> None:
    """Also one that nothing reads."""

    def given(t: int) -> tuple[Any, ...]:
        made = list(results(t))
        if t == 2:
            made[wrong] = np.zeros(7, "f4")
        return tuple(made)

    steps: list[int] = []
    with pytest.raises(ShapeError, match=r"gives an array of shape \(7,\)"):
        measured(steps, given).run()
    assert steps == [0, 1, 2]


def test_one_result_of_all_rows_is_told_with_a_line_to_write() -> None:
    def told(whole: bool) -> Any:
        ctx = rc.Context(dims="i t")
        with ctx as ((i, I), (t, T)):
            obs = rc.uniform((i, t))
            if whole:
                n = rc.call(lambda a: np.float32(len(a)), rc.f32, obs[i, 0:T])
            else:
                n = rc.call(lambda a: np.float32(len(a)), rc.f32, obs, batch=(t,))
            rc.output(n=n)
        return ctx.run({I: 2, T: 3}, backend="numpy")["n"]

    with pytest.raises(ShapeError, match=r"leave batch out: rc.call\(f, type, obs\[i, 0:T\]\)"):
        told(whole=False)
    np.testing.assert_array_equal(told(whole=True), [3, 3])
