"""Slopes of what all rows share, at each of their points, where the data end the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS
from recurra.errors import DomainError

LENGTHS, MOST = (4, 1, 3), 5
BASE = np.asarray([[np.sin(3 * b + t) for t in range(MOST)] for b in range(3)], np.float32)


def program(write: Callable[..., Any], backend: str) -> Any:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.constant(BASE).take(rc.value(b, "i32")).take(rc.value(t, "i32"))
        rc.output(**write(x, b, B, t, T))
        last = rc.constant(LENGTHS, "i32").take(rc.value(b, "i32")) - 1
        end = rc.until(rc.value(t, "i32") >= last, max=MOST)
    return ctx.run({B: 3, T: end}, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_power_of_time(backend: str) -> None:
    def write(x: Any, b: Any, B: Any, t: Any, T: Any) -> dict[str, Any]:
        w = rc.constant(0.7)
        (x * w**t)[0:B, 0:T].sum().backward(wrt=[w])
        return {"slope": w.grad}

    want = sum(
        BASE[b, t] * t * 0.7 ** (t - 1.0) for b, n in enumerate(LENGTHS) for t in range(1, n)
    )
    np.testing.assert_allclose(program(write, backend)["slope"], want, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_for_each_time(backend: str) -> None:
    """As of a position that is learned: rows that have ended take no part."""

    def write(x: Any, b: Any, B: Any, t: Any, T: Any) -> dict[str, Any]:
        shift = rc.like(rc.f32, (t,))
        shift[t] = rc.value(t) * 0.1
        h = rc.like(rc.f32, (b, t))
        h[b, 0] = x + shift
        h[b, t] = (h[b, t - 1] + x + shift).tanh()
        h[0:B, 0:T].mean().backward(wrt=[shift])
        return {"slope": shift.grad}

    def mean(shift: np.ndarray) -> float:
        total = 0.0
        for b, n in enumerate(LENGTHS):
            h = 0.0
            for t in range(n):
                h = BASE[b, 0] + shift[0] if t == 0 else np.tanh(h + BASE[b, t] + shift[t])
                total += h
        return total / sum(LENGTHS)

    at = 0.1 * np.arange(MOST)
    ways = 1e-6 * np.eye(MOST)
    want = [(mean(at + way) - mean(at - way)) / 2e-6 for way in ways]
    np.testing.assert_allclose(program(write, backend)["slope"], want, rtol=1e-4, atol=1e-6)


def test_points_of_other_rows_are_refused_in_values() -> None:
    """How many of them there are is not said."""
    with pytest.raises(DomainError, match="reads points of other rows, which may have ended"):
        program(lambda x, b, B, t, T: {"y": x[0:B, t].sum()}, "numpy")
