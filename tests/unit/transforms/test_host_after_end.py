"""Loops of the host that end where another loop has found out that rows do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc

MOST = 6
X = np.random.default_rng(3).normal(size=(4, MOST))
LENGTHS = (1, 6, 1, 3)  # a short row behind a long one: what that left is past its end
DONE = np.zeros(X.shape, bool)
DONE[range(4), [n - 1 for n in LENGTHS]] = True
DONE[2, 3:] = True
BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])


def padded(row: Callable[[np.ndarray], Any]) -> np.ndarray:
    out = np.zeros(X.shape)
    for b, n in enumerate(LENGTHS):
        out[b, :n] = row(X[b, :n])
    return out


def halved(x: np.ndarray) -> list[float]:
    out = [x[0]]
    for v in x[1:]:
        out.append(out[-1] * 0.5 + v)
    return out


def backwards(x: np.ndarray) -> list[float]:
    return halved(x[::-1])[::-1]


def one(call: Any, x: Any, b: Any, t: Any, T: Any) -> Any:
    return call(x)


def two(call: Any, x: Any, b: Any, t: Any, T: Any) -> Any:
    """The second loop reads the last result of the first."""
    y = call(x) * 1.0
    return call(x + 0.0 * y[b, T - 1])


def recurrence(call: Any, x: Any, b: Any, t: Any, T: Any) -> Any:
    h = rc.like(rc.f64, (b, t))
    h[b, 0] = x
    h[b, t] = call(h[b, t - 1] * 0.25) + x
    return h


def from_the_end(call: Any, x: Any, b: Any, t: Any, T: Any) -> Any:
    h = rc.like(rc.f64, (b, t))
    h[b, T - 1] = x
    h[b, t] = call(h[b, t + 1] * 0.25) + x
    return h


PROGRAMS: dict[str, tuple[Callable[..., Any], np.ndarray, int | None]] = {
    "one": (one, padded(lambda x: 2.0 * x), sum(LENGTHS)),
    "two": (two, padded(lambda x: 2.0 * x), None),
    "recurrence": (recurrence, padded(halved), sum(n - 1 for n in LENGTHS)),
    "from the end": (from_the_end, padded(backwards), None),
}


@BACKENDS
@pytest.mark.parametrize(("write", "want", "count"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_called_is_what_rows_have(
    write: Callable[..., Any], want: np.ndarray, count: int | None, backend: str
) -> None:
    """What a row before had left past the end of this one was an answer; the host was called."""
    calls = list[float]()

    def double(x: np.ndarray) -> np.ndarray:
        calls.append(float(x))
        return 2.0 * x

    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f64, (b, t), name="x")
        done = rc.input(rc.boolean, (b, t), name="done")
        pure = write in (two, from_the_end)  # calls with effects are made once, and forward in time
        rc.output(y=write(lambda x: rc.call(double, rc.f64, x, pure=pure), x, b, t, T))
    program = ctx.compile({B: 4, T: rc.until(done, max=MOST)}, backend=backend)
    given = X.copy()
    for _ in range(2):
        calls.clear()
        np.testing.assert_allclose(program.run(inputs={"x": given, "done": DONE})["y"], want)
        np.testing.assert_array_equal(given, X)  # points past the end are the caller's, too
        assert count is None or len(calls) == count


def rows_end_at(lengths: list[int], write: Callable[..., Any], backend: str) -> np.ndarray:
    """The output `write(x, b, t, T)` of rows of these lengths, x[b,t] being 10 b + t."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        n = rc.input(rc.i32, (b,), name="n")
        end = rc.until(rc.value(t, "i32") >= n - 1, max=5)
        rc.output(y=write(rc.value(t) + rc.value(b) * 10.0, b, t, T))
    program = ctx.compile({B: len(lengths), T: end}, backend=backend)
    return program.run(inputs={"n": np.array(lengths, np.int32)})["y"]


@BACKENDS
@pytest.mark.parametrize("pure", [True, False])
def test_functions_are_called_at_points_that_there_are(backend: str, pure: bool) -> None:
    """Those without state were called past the ends of rows that other rows outlast."""
    seen: list[float] = []

    def f(v: Any) -> Any:
        seen.append(float(v))
        return v * np.float32(2)

    y = rows_end_at([2, 4, 1], lambda x, b, t, T: rc.call(f, rc.f32, x, pure=pure), backend)
    assert sorted(seen) == [0, 1, 10, 11, 12, 13, 20]
    np.testing.assert_array_equal(y, [[0, 2, 0, 0, 0], [20, 22, 24, 26, 0], [40, 0, 0, 0, 0]])


@BACKENDS
def test_no_row_is_empty_for_a_function_of_what_is_left(backend: str) -> None:
    """IndexError in the function, which was given nothing past the end."""
    y = rows_end_at(
        [2, 3],
        lambda x, b, t, T: rc.call(lambda v: v[0] + v[-1], rc.f32, x[b, t:T], pure=True),
        backend,
    )
    np.testing.assert_array_equal(y, [[1, 2, 0, 0, 0], [22, 23, 24, 0, 0]])


@BACKENDS
@pytest.mark.parametrize("pure", [True, False])
def test_a_call_at_first_points(backend: str, pure: bool) -> None:
    """IndexError of ours: a region was left without anything to do."""
    y = rows_end_at(
        [2, 3],
        lambda x, b, t, T: rc.where(t == 0, rc.call(lambda v: v + 1, rc.f32, x, pure=pure), x),
        backend,
    )
    np.testing.assert_array_equal(y, [[1, 1, 0, 0, 0], [11, 11, 12, 0, 0]])
