"""A branch that earlier ones hide for all bounds is refused; one that is seen for some is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import DomainError


def written(define: Callable[[Any, Any, Any, Any], None]) -> rc.Context:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        n = rc.bound("N")
        x = rc.like(rc.f32, (t,), name="x")
        define(x, t, T, n)
        rc.output(x=x + 0.0 * rc.value(n))
    return ctx


def everywhere_first(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t] = 1.0
    x[0] = 2.0


def twice(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t] = 1.0
    x[t] = 2.0


def together(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t < 3] = 1.0
    x[t >= 2] = 2.0
    x[T - 1] = 3.0


def shifted(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t >= 1] = 1.0
    x[t + 1] = x * 2.0
    x[0] = 1.0


def even(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t % 2 == 0] = 1.0
    x[t % 4 == 0] = 2.0
    x[t] = 3.0


@pytest.mark.parametrize("define", [everywhere_first, twice, together, shifted, even])
def test_a_branch_that_never_holds_is_refused(define: Any) -> None:
    with pytest.raises(DomainError, match="this branch of x never holds: others come before it"):
        written(define)


def test_both_lines_are_told() -> None:
    with pytest.raises(DomainError) as e:
        written(everywhere_first)
    text = str(e.value)
    assert (
        "x[0] = 2.0\n  the first branch that holds wins, and where t == 0 earlier ones do" in text
    )
    assert "the first of them   --> test_hidden_branches.py" in text
    assert text.index("x[0] = 2.0") < text.index("x[t] = 1.0")


def first_last(x: Any, t: Any, T: Any, n: Any) -> None:
    """With T = 1 the last is the first."""
    x[0] = 1.0
    x[T - 1] = 3.0
    x[t] = 2.0


def by_bound(x: Any, t: Any, T: Any, n: Any) -> None:
    """With N = 1 there is nothing between."""
    x[t >= n] = 3.0
    x[0] = 1.0
    x[t] = 2.0


def outside(x: Any, t: Any, T: Any, n: Any) -> None:
    """What falls outside of the domain is dropped."""
    x[t] = 1.0
    x[t < 0] = 2.0


@pytest.mark.parametrize(
    ("define", "want"),
    [(first_last, [1, 2, 2, 3]), (by_bound, [1, 2, 3, 3]), (outside, [1, 1, 1, 1])],
)
def test_a_branch_that_may_hold_is_taken(define: Any, want: list[float]) -> None:
    ctx = written(define)
    np.testing.assert_array_equal(ctx.run({"T": 4, "N": 2}, backend="numpy")["x"], want)
    assert ctx.run({"T": 1, "N": 1}, backend="numpy")["x"].shape == (1,)
