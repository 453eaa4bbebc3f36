"""Host functions of ranges: each call is given as many elements as its point has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS
from recurra.errors import RecurraError

B, T = 3, 4
X = 10.0 * np.arange(B)[:, None] + np.arange(T)
ENDS = (4, 3, 1)  # of rows that the data end

RANGES: dict[str, tuple[Callable[..., slice], Callable[[int, int], slice]]] = {
    "t:T": (lambda t, T: slice(t, T), lambda t, n: slice(t, n)),
    "0:t": (lambda t, T: slice(0, t), lambda t, n: slice(0, t)),
    "0:t+1": (lambda t, T: slice(0, t + 1), lambda t, n: slice(0, t + 1)),
    "t:t+2": (lambda t, T: slice(t, rc.min(t + 2, T)), lambda t, n: slice(t, min(t + 2, n))),
    "0:T": (lambda t, T: slice(0, T), lambda t, n: slice(0, n)),
}


def told(x: np.ndarray) -> np.ndarray:
    """How many elements of the last axis there are, and their sum."""
    n = np.full(x.shape[:-1], x.shape[-1], np.float32)
    return np.stack([n, x.sum(axis=-1, dtype=np.float32)], axis=-1)


def written(span: str, by_data: bool, backend: str, batch: bool = False) -> np.ndarray:
    """What the function gives for a range at every point, [B, T, 2] or [B, 2]."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x = rc.value(b) * 10.0 + rc.value(t)
        end = rc.until(rc.constant(ENDS, "i32").take(rc.value(b, "i32")) - 1 <= rc.value(t), max=T)
        at = RANGES[span][0](t, steps)
        rc.output(y=rc.call(told, rc.f32[2], x[b, at], batch=[b] if batch else []))
    return np.asarray(ctx.run({rows: B, steps: end if by_data else T}, backend=backend)["y"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("span", RANGES)
def test_a_call_is_given_what_is_there(span: str, by_data: bool, backend: str) -> None:
    got = written(span, by_data, backend)
    if span == "0:T":
        got = np.broadcast_to(got[:, None], (B, T, 2))
    want = np.zeros((B, T, 2), np.float32)
    for b in range(B):
        n = ENDS[b] if by_data else T
        for t in range(T if span == "0:T" else n):
            want[b, t] = told(X[b, RANGES[span][1](t, n)])
    np.testing.assert_allclose(got, want)


def test_rows_of_one_call_are_of_one_length() -> None:
    """Of rows that end at different points each has zeros from its end on."""
    got = written("t:T", by_data=True, backend="numpy", batch=True)
    want = np.zeros((B, T, 2), np.float32)
    for b, n in enumerate(ENDS):
        for t in range(n):
            want[b, t] = T - t, X[b, t:n].sum()
    np.testing.assert_allclose(got, want)


def refused(write: Callable[..., Any], steps: Any = T) -> str:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.value(b) * 10.0 + rc.value(t)
        rc.output(y=write(x, b, t, T))
        end = rc.until(x > 2.0, max=4) if steps == "data" else steps
    with pytest.raises(RecurraError) as e:
        ctx.run({B: 2, T: end}, backend="numpy")
    return str(e.value)


def test_a_result_has_the_sizes_it_was_promised_with() -> None:
    few = refused(lambda x, b, t, T: rc.call(lambda a: a[:1], rc.f32, x, batch=[b]))
    assert "gives an array of shape (1,)" in few
    assert "it was to give f32[B], which is (2,) here" in few
    short = refused(lambda x, b, t, T: rc.call(lambda a: a[:2], rc.f32[T], x[b, 0:T]))
    assert "it was to give f32[T], which is (4,) here" in short


def test_a_result_is_no_row_that_ends() -> None:
    grows = refused(lambda x, b, t, T: rc.call(lambda a: a, rc.f32[t + 1], x[b, 0 : t + 1]).sum())
    assert "the results of a call cannot have a length that changes with a dim" in grows
    assert "lambda'[" not in grows
    ends = refused(lambda x, b, t, T: rc.call(lambda a: a, rc.f32[T], x[b, 0:T]).sum(), "data")
    assert "gives rows that end at different points" in ends
