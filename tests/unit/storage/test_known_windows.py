"""Stores are as long as their readers wait, also where only the bounds of this program tell."""

from collections.abc import Callable
from typing import Any

import pytest

import recurra as rc
from everywhere import BACKENDS, expect_interpreted
from recurra.ir.expr import Sym, maximum, minimum
from recurra.ir.types import Domain, Range
from recurra.polyhedral import isl


def slots(ctx: rc.Context, bounds: dict[Any, int], backend: str) -> dict[str, str]:
    program = ctx.compile(bounds, backend=backend)
    return {r["store"]: r["slots"] for r in program.store_rows if r["bytes"] > 200}


def attended(x: Any, k: Any) -> Any:
    weights = rc.einsum("d,nd->n", x, k).softmax()
    return rc.einsum("n,nd->d", weights, k)


def by_layer() -> tuple[rc.Context, Callable[[int], dict[Any, int]]]:
    """A window of 2l + 1 points in layer l."""
    ctx = rc.Context(dims="l t")
    with ctx as ((l, L), (t, T)):
        x, k = (rc.like(rc.f32[8], (l, t), name) for name in "xk")
        x[0, 0] = rc.normal((), (8,))
        k[l, t] = x * 0.5
        z = (x + attended(x, k[l, rc.max(t - 2 * l, 0) : t + 1])).tanh()
        x[l + 1, t] = z
        x[0, t + 1] = z[L - 1, t]
        rc.output(y=z[L - 1, t])
    return ctx, lambda steps: {L: 4, T: steps}


def anchored() -> tuple[rc.Context, Callable[[int], dict[Any, int]]]:
    """The last 32 points, and one that is always there."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x, k = (rc.like(rc.f32[8], (t,), name) for name in "xk")
        x[0] = rc.normal((), (8,))
        k[t] = x * 0.5
        lo = rc.max(t - 31, 0)
        read = rc.concat([k[rc.min(100, lo) : rc.min(lo, 101)], k[lo : t + 1]])
        x[t + 1] = (x + attended(x, read)).tanh()
        rc.output(y=x)
    return ctx, lambda steps: {T: steps}


@pytest.mark.parametrize("make", [by_layer, anchored])
@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_that_the_bounds_tell_hold_what_is_needed(make: Callable[[], Any], backend: str):
    ctx, bounds = make()
    expect_interpreted(ctx, bounds(140), backend, rtol=2e-5)


def test_a_window_for_each_layer_is_the_longest_of_them():
    ctx, bounds = by_layer()
    assert slots(ctx, bounds(1000), "numpy")["k"] == "t: 7 + 7, l: 4"


def test_a_point_that_is_always_there_takes_no_more_in_a_longer_run():
    ctx, bounds = anchored()
    found = [slots(ctx, bounds(steps), "numpy") for steps in (1000, 4000)]
    assert [(f["k"], f["k_first"]) for f in found] == [("t: 32", "t: 101")] * 2


@pytest.mark.parametrize(
    ("expr", "most"),
    [
        (minimum(maximum(Sym("t") - 31, 0), 101) - minimum(100, maximum(Sym("t") - 31, 0)), 1),
        (minimum(Sym("t") - 31, 101) - minimum(Sym("t") - 31, 100), 1),
        (minimum(Sym("t"), 5), 5),
        (Sym("t") - Sym("t"), 0),
        (3 - Sym("t"), 3),
    ],
)
def test_the_largest_of_an_index_is_a_number_if_one_bounds_it(expr: Any, most: int):
    assert isl.largest(expr, Domain((Range("t", Sym("T")),))) == most


def test_the_largest_of_an_index_is_told_by_bounds_if_no_number_does():
    assert str(isl.largest(Sym("t"), Domain((Range("t", Sym("T")),)))) == "T-1"
