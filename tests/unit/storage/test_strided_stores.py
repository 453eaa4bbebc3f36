"""What is read a stride apart is kept a stride apart, and what lies between is let go."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recurra as rc
from everywhere import BACKENDS, expect_interpreted
from random_cases import QUICK
from recurra.ir.expr import Sym, div
from recurra.ir.graph import Slice
from recurra.ir.types import Domain, Range
from recurra.polyhedral.strides import Stride, stride
from recurra.runtime.executable import Executable
from recurra.storage.arena_offsets import allocate
from recurra.storage.verifier import validate

Far = Callable[[Any, int, int], slice]  # of t, a stride and a window
FARS: dict[str, Far] = {
    "columns": lambda t, c, w: slice(0, rc.max(t - w + 1, 0), c),
    "ends of blocks": lambda t, c, w: slice(c - 1, t // c * c, c),
    "all so far": lambda t, c, w: slice(1, t + 1, c),
    "from a block on": lambda t, c, w: slice(rc.max(t // c * c - 2 * c, 0), t + 1, c),
}


def recurrence(far: Far, c: int, window: int, near: bool) -> tuple[rc.Context, Any]:
    """x[t+1] of points of k a stride apart and, perhaps, of the last few."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x, k = (rc.like(rc.f32[3], (t,), name) for name in "xk")
        x[0] = rc.normal((), (3,))
        k[t] = x * 0.7 + 0.1
        read = [k[far(t, c, window)]]
        if near:
            read.append(k[rc.max(t - window + 1, 0) : t + 1])
        w = rc.concat(read) if near else read[0]
        x[t + 1] = (x * 0.5 + w.sum(axis=0) * 0.3).tanh()
        rc.output(y=x)
    return ctx, T


def kept(program: Executable) -> dict[str, int]:
    """How many points of k are kept, where more than one is."""
    plan = program.compiled.plan
    assert not validate(plan, allocate(plan))
    axes = {n: [a.slots for a in s.kept] for n, s in plan.stores.items() if n.startswith("k")}
    return {n: slots[0] for n, slots in axes.items() if slots}


@pytest.mark.parametrize("far", FARS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_computes_the_same(far: str, backend: str) -> None:
    for near in (False, True):
        ctx, T = recurrence(FARS[far], 5, 3, near)
        expect_interpreted(ctx, {T: 23}, backend, rtol=2e-5)


@pytest.mark.slow
@QUICK
@given(st.sampled_from(sorted(FARS)), st.integers(2, 9), st.integers(1, 9), st.integers(1, 40))
def test_whatever_the_stride_the_window_and_the_end(far: str, c: int, window: int, T_: int) -> None:
    for near in (False, True):
        ctx, T = recurrence(FARS[far], c, window, near)
        expect_interpreted(ctx, {T: T_}, "numpy", rtol=2e-5)
        kept(ctx.compile({T: T_}, backend="numpy"))


@pytest.mark.parametrize(
    ("far", "near", "most"),
    [
        ("columns", True, {"k": 32, "k_every": 17}),
        ("ends of blocks", True, {"k": 32, "k_every": 16}),
        ("ends of blocks", False, {"k": 16}),
        ("columns", False, {"k": 17}),
    ],
)
def test_as_many_are_kept_as_are_asked_for_again(far: str, near: bool, most: Any) -> None:
    """Of 1,000 points 15 or 16, and a slot for what lies between."""
    ctx, T = recurrence(FARS[far], 64, 32, near)
    assert kept(ctx.compile({T: 1000}, backend="numpy")) == most


@pytest.mark.slow
def test_points_of_several_rows_and_their_gradient() -> None:
    """Each row of k is read a stride apart, in both directions of time."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        w = rc.nn.Parameter(np.eye(3, dtype=np.float32) * 0.4, domain=())
        x, k = (rc.like(rc.f32[3], (b, t), name) for name in "xk")
        x[b, 0] = rc.normal((b,), (3,))
        k[b, t] = x @ w
        x[b, t + 1] = (x * 0.5 + k[b, 0 : rc.max(t - 2, 0) : 4].sum(axis=0)).tanh()
        loss = x[0:B, T - 1].square().mean()
        loss.backward()
        rc.output(loss=loss, slope=w.grad)
    for backend in BACKENDS:
        expect_interpreted(ctx, {B: 2, T: 14}, backend, rtol=2e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_given_is_kept_as_it_is(backend: str) -> None:
    for n in (5, 23):
        ctx = rc.Context(dims="t")
        with ctx as (t, T):
            x = rc.input(rc.f32[3], (t,), name="x")
            y = rc.like(rc.f32[3], (t,))
            y[0] = x[0]
            y[t + 1] = (y * 0.5 + x[0 : t + 1 : 4].sum(axis=0)).tanh()
            rc.output(last=y[T - 1])
        x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
        want = x[0]
        for k in range(n - 1):
            want = np.tanh(want * 0.5 + x[0 : k + 1 : 4].sum(axis=0))
        found = ctx.run({T: n}, backend=backend, inputs={"x": x})["last"]
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_what_makes_a_stride() -> None:
    box = Domain((Range("t", Sym("T")),))
    t, sizes = Sym("t"), {"T": 100}
    assert stride([(Slice(3, t, 4), box)], sizes) == Stride(4, 3)
    assert stride([(Slice(3, t, 4), box), (Slice(1, t, 6), box)], sizes) == Stride(2, 1)
    assert stride([(Slice(3, t, 4), box), (Slice(2, t, 6), box)], sizes) is None
    assert stride([(Slice(div(t, 4) * 4 - 8, t, 4), box)], sizes) == Stride(4, 0)
    assert stride([(Slice(t, 2 * t, 4), box)], sizes) is None
    assert stride([(Slice(0, t, 4), box), (div(t, 4) * 4, box)], sizes) == Stride(4, 0)
    assert stride([(Slice(0, t), box)], sizes) is None
    assert stride([(t, box)], sizes) is None
    assert Stride(4, 3).first(4) == 7
