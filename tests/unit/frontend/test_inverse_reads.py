"""Gradients through reads that are no plain shifts agree with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from random_affine import DIMS, affine, asked, condition, holds, points
from recurra.analysis.safety import check_safety
from recurra.ir.expr import TRUE, Expr, Sym, evaluate, maximum
from recurra.ir.graph import Graph, Ref, Slice
from recurra.ir.types import Domain, Range
from recurra.polyhedral import dependence
from recurra.reference import interpreter

Read = Callable[..., Any]

ONE: dict[str, Read] = {
    "shift": lambda x, t, T: rc.where(t >= 2, x[t - 2], 0.0),
    "shift forward": lambda x, t, T: rc.where(t < T - 1, x[t + 1], 0.0),
    "constant": lambda x, t, T: x[0] * x,
    "last": lambda x, t, T: x[T - 1] * x,
    "mod": lambda x, t, T: x[rc.min(t % 4, T - 1)],
    "mod plain": lambda x, t, T: rc.where(t % 4 < T, x[t % 4], 0.0),
    "floor": lambda x, t, T: x[t // 3],
    "floor of a sum": lambda x, t, T: x[(t + 2) // 4],
    "reversed": lambda x, t, T: x[T - 1 - t],
    "stretched": lambda x, t, T: rc.where(2 * t < T, x[2 * t], x[t]),
    "clamped above": lambda x, t, T: x[rc.min(t + 3, T - 1)],
    "clamped below": lambda x, t, T: x[rc.max(t - 3, 0)],
    "window ahead": lambda x, t, T: x[t : rc.min(t + 3, T)].sum(),
    "window behind": lambda x, t, T: x[rc.max(t - 3, 0) : t + 1].sum(),
    "suffix": lambda x, t, T: x[t:T].discounted_sum(0.9),
    "strict suffix": lambda x, t, T: x[t + 1 : T].sum(),
    "prefix": lambda x, t, T: x[0 : t + 1].square().sum(),
    "strict prefix": lambda x, t, T: x[0:t].sum(),
    "far prefix": lambda x, t, T: x[0 : rc.max(t - 2, 0)].sum(),
    "far suffix": lambda x, t, T: x[rc.min(t + 3, T) : T].sum(),
    "stride": lambda x, t, T: x[0:T:3].sum() * x,
    "moving stride": lambda x, t, T: x[t:T:3].discounted_sum(0.5),
    "stride behind": lambda x, t, T: x[0 : t + 1 : 2].sum(),
    "stride from a clamp": lambda x, t, T: x[rc.max(t - 5, 0) : t + 1 : 4].sum(),
    "tiles": lambda x, t, T: x[t // 4 * 4 : rc.min(t // 4 * 4 + 4, T)].sum(),
    "a tile so far": lambda x, t, T: x[t // 4 * 4 : t + 1].max(),
    "double window": lambda x, t, T: x[rc.min(2 * t, T) : rc.min(2 * t + 2, T)].sum(),
    "window of a window": lambda x, t, T: (
        x[0 : t + 1].sum()[...] if False else x[t - t % 2 : T].sum()
    ),
    "in a stride of branches": lambda x, t, T: rc.where(t % 3 == 1, x[t - 1], x[t // 2]),
    "branches with a hole": lambda x, t, T: rc.where((t < 2) | (t > 4), x[t // 2], 0.0),
    "a slice in a branch": lambda x, t, T: rc.where(t >= 1, x[0:T], x[0:T] * 2.0).sum(),
}

TWO: dict[str, Read] = {
    "transposed": lambda x, s, S, t, T: x[rc.min(t, S - 1), rc.min(s, T - 1)],
    "diagonal": lambda x, s, S, t, T: x[s, rc.min(s, T - 1)] * x,
    "sum of dims": lambda x, s, S, t, T: x[0, rc.min(s + t, T - 1)],
    "sum of dims where it fits": lambda x, s, S, t, T: rc.where(s + t < T, x[s, s + t], x),
    "sum of dims, strided": lambda x, s, S, t, T: rc.where(s + 2 * t < T, x[s, s + 2 * t], x),
    "difference of dims": lambda x, s, S, t, T: rc.where(t >= s, x[s, t - s], 0.0),
    "one dim free": lambda x, s, S, t, T: x[0, t] * x,
    "two slices": lambda x, s, S, t, T: x[s:S, t:T].sum(),
    "a slice by the other dim": lambda x, s, S, t, T: x[s, 0 : rc.min(s + 1, T)].sum(),
    "a triangle": lambda x, s, S, t, T: x[rc.min(t, S) : S, 0 : rc.min(s + t + 1, T)].sum(),
    "a shift and a slice": lambda x, s, S, t, T: rc.where(s >= 1, x[s - 1, 0:T], x[s, 0:T]).sum(),
    "two shifts": lambda x, s, S, t, T: rc.where((s >= 1) & (t >= 1), x[s - 1, t - 1], x),
    "floor and mod": lambda x, s, S, t, T: x[s // 2, rc.min(t % 3, T - 1)],
}


def gradient_program(dims: str, read: Read) -> Graph:
    """loss = Σ (read · weight + read²), so that every point of the reader counts differently."""
    ctx = rc.Context(dims=dims)
    with ctx as pairs:
        over = tuple(d for d, _ in pairs)
        x = rc.input(rc.f64[()], over, "x")
        y = read(x, *(e for pair in pairs for e in pair))
        weight = sum((rc.value(d, "f64") * (k + 1.5) for k, (d, _) in enumerate(pairs)), start=2.0)
        loss = (y * weight + y.square()) + x * 0.0
        total = loss[tuple(slice(None) for _ in pairs)].sum()
        total.backward(wrt=[x])
        rc.output(loss=total, dx=x.grad)
    return ctx.graph


def outputs(graph: Graph, bounds: Mapping[str, int], x: np.ndarray) -> tuple[np.ndarray, Any]:
    out = interpreter.run(graph, bounds, {"x": x})
    (loss,) = [v for v in out.values() if not v.shape]
    (dx,) = [v for v in out.values() if v.shape]
    return dx, loss


def agrees_with_differences(graph: Graph, bounds: Mapping[str, int]) -> None:
    check_safety(graph, bounds)
    rng = np.random.default_rng(0)
    x = rng.normal(size=tuple(bounds[r.dim.upper()] for r in graph["x"].domain))
    dx, _ = outputs(graph, bounds, x)
    loss_only = graph.update([], tuple(o for o in graph.outputs if not len(graph[o].domain)))
    want = np.zeros_like(x)
    for k in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[k] = 1e-5
        ends = [
            float(next(iter(interpreter.run(loss_only, bounds, {"x": x + d}).values())))
            for d in (step, -step)
        ]
        want[k] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(dx, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("T", [1, 2, 5, 9])
@pytest.mark.parametrize("name", ONE)
def test_gradients_of_one_dim(name: str, T: int) -> None:
    agrees_with_differences(gradient_program("t", ONE[name]), {"T": T})


@pytest.mark.parametrize(("S", "T"), [(1, 1), (2, 5), (4, 3)])
@pytest.mark.parametrize("name", TWO)
def test_gradients_of_two_dims(name: str, S: int, T: int) -> None:
    agrees_with_differences(gradient_program("s t", TWO[name]), {"S": S, "T": T})


FREE = (Range("u", Sym("U")), Range("v", Sym("V")))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_reader_is_in_the_interval(data: st.DataObject) -> None:
    """Exactly: no reader of a point is outside, and the interval stays in the range of the dim."""
    ref = Ref("x", tuple(data.draw(affine("uuuvvSUV")) for _ in DIMS))
    if data.draw(st.booleans()):
        lo = data.draw(affine("uuvU"))
        ref = Ref("x", (ref.index[0], Slice(lo, lo + 2, data.draw(st.integers(1, 2)))))
    when = data.draw(st.just(TRUE) | condition("uuvvst"))
    source = Domain(DIMS)
    ends = {r: dependence.readers(r, FREE, source, ref.index, when) for r in FREE}
    env = {n: data.draw(st.integers(1, 4)) for n in "STUV"}
    for q in points(source, env):
        for r, (lo, hi) in ends.items():
            assert 0 <= evaluate(lo, q) <= evaluate(hi, q) <= q[r.dim.upper()], f"{ref} {when} {q}"
        for p in points(Domain(FREE), q):
            if holds(when, p) and (q["s"], q["t"]) in set(asked(ref, p)):
                for r, (lo, hi) in ends.items():
                    assert evaluate(lo, q) <= p[r.dim] < evaluate(hi, q), f"{ref} {when} {q} {p}"


@pytest.mark.parametrize(
    ("index", "when", "lo", "hi"),
    [
        (Sym("u"), TRUE, "t", "t+1"),
        (Slice(Sym("u"), Sym("U")), TRUE, "0", "t+1"),
        (Slice(0, Sym("u") + 1), TRUE, "t", "U"),
        (Slice(maximum(Sym("u") - 3, 0), Sym("u") + 1), TRUE, "t", "min(U,t+4)"),
        (Sym("u") // 4, TRUE, "min(4*t,U)", "min(U,4*t+4)"),
        (Sym("u") % 4, TRUE, "t", "U-(U-t-1)%4"),
        (Slice(0, Sym("u")), TRUE, "t+1", "U"),
    ],
)
def test_intervals_are_tight(index: Any, when: Expr, lo: str, hi: str) -> None:
    (u, _), source = FREE, Domain((Range("t", Sym("U")),))
    assert tuple(map(str, dependence.readers(u, [u], source, [index], when))) == (lo, hi)
