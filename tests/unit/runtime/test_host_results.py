"""Results of a host call: those that are read go to the backend, in the sizes that were said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.backends.numpy.numpy_backend import NumpyBackend
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

    def from_host_call(self, x: Any) -> Any:
        self.taken.append(np.shape(x))
        return super().from_host_call(x)


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


def told_late(backend: str) -> rc.Executable:
    """A reading of a sensor that is asked for with every step, read at once, a step and an
    iteration later, and whole after the last one; another function reads it, too."""
    readings, kept = iter(range(1, 100)), list[Any]()

    def sense(x: Any) -> Any:
        return np.full(3, next(readings), "f4") + x

    def keep(x: Any) -> Any:
        kept.append(x)
        return np.float32(sum(float(y[0]) for y in kept))  # also of those before

    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        x = rc.like(rc.f32[3], domain=(i, t))
        last = rc.like(rc.f32[3], domain=(i,))
        seen = rc.call(sense, rc.f32[3], x)
        x[i, 0] = last
        x[i, t + 1] = seen
        last[0] = rc.constant([0.0, 0.5, 0.25])
        last[i + 1] = seen[i, T - 1]
        total = rc.call(keep, rc.f32, seen)
        rc.output(x=x, seen=seen, twice=seen * 2 + x, total=total, last=last)
    return ctx.compile({I: 3, T: 4}, backend=backend)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_a_call_gives_stays_when_it_is_called_again(backend: str) -> None:
    """Launches read it where the host writes it; what is read later has memory of its own."""
    want, got = told_late("numpy").run(), told_late(backend).run()
    assert set(got) == set(want)
    for name, array in want.items():
        np.testing.assert_array_equal(np.asarray(got[name]), array, err_msg=name)
    assert len(set(want["seen"][:, :, 0].ravel())) == 12


def test_launches_read_what_a_call_gives_where_the_host_writes_it() -> None:
    """No array is made with every step."""
    made: list[Any] = []

    def wrap(_: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def told(*given: Any) -> Any:
            made.append(call(*given))
            return made[-1]

        return told

    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.call(lambda v: v * 2, rc.f32[4], rc.value(t) + rc.constant([1.0, 2.0, 3.0, 4.0]))
        rc.log(total=x.sum(axis=0))
    execution = ctx.compile({T: 5}, backend="jax").execution.using(calls=wrap)
    for _ in execution.steps():
        pass
    arrays = {id(results[0]) for results in made}
    assert len(made) == 5
    assert len(arrays) == (1 if execution.backend.threaded else len(made))
