"""Bounds that the data set: each row is what a program of its own length would make of it."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from random_rows import MOST, ROWS, Rows, write
from recurra import interp
from recurra.lang.safety import check
from recurra.rewrite.until import Ending, end_rows

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])


def expected(rows: Rows, sums: Rows, first: int) -> dict[str, np.ndarray]:
    """From every row alone, at its own length."""
    lengths = rows.lengths(first)
    alone = [sums.alone(b, int(n)) for b, n in enumerate(lengths)]
    names = list(sums.names)
    found = {n: [r[sums.names[n]] for r in alone] for n in names}
    out = {n: sum(xs) / lengths.sum() for n, xs in found.items() if n in ("loss", "d_w")}
    out["y"] = np.stack([np.pad(y[0], (0, MOST - len(y[0]))) for y in found["y"]])
    for n in ("last", "long"):
        out[n] = np.concatenate(found[n])
    return out


def ended(rows: Rows, first: int):
    check(rows.graph, {"B": ROWS}, {"T": MOST})
    return end_rows(rows.graph, "T", Ending("done", first, MOST))


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_what_it_is_alone(seed: int) -> None:
    rows, sums = write(seed, mean=True), write(seed, mean=False)
    first = seed % 3
    graph = ended(rows, first)
    inputs = {n: x for n, x in rows.inputs.items() if n in graph.nodes}
    got = interp.run(graph, {"B": ROWS}, inputs)
    by_name = dict(zip(rows.graph.outputs, graph.outputs, strict=True))
    want = expected(rows, sums, first)
    assert want.keys() == rows.names.keys()
    for name, x in want.items():
        have = got[by_name[rows.names[name]]]
        np.testing.assert_allclose(have, x, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(0, 60, 3))
@BACKENDS
def test_backends(seed: int, backend: str) -> None:
    rows, sums = write(seed, mean=True), write(seed, mean=False)
    program = rows.compile(seed % 3, backend=backend)
    mine = {n: x for n, x in rows.inputs.items() if n in program.source_graph.nodes}
    got = program.run(inputs=mine)
    for name, x in expected(rows, sums, seed % 3).items():
        np.testing.assert_allclose(got[name], x, rtol=2e-4, atol=2e-5, err_msg=name)


def on_host(backend: str, ends: tuple[int, ...], bound: int, dynamic: bool = True):
    """Rows that a host function counts up to their end; how often it was called."""
    calls: list[int] = []

    def count(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x + 1

    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        limit = rc.constant(np.array(ends, np.float32)).index(b)
        w = rc.like(rc.f32, domain=(i,))
        w[0] = rc.constant(1.0)
        x = rc.like(rc.f32, domain=(b, i, t))
        x[b, i, 0] = limit * 0
        x[b, i, t + 1] = rc.call(count, rc.f32, x, batch=(b,))
        h = rc.like(rc.f32, domain=(b, i, t))
        h[b, i, 0] = x[b, i, 0]
        h[b, i, t + 1] = (h * 0.5 + x * w).tanh()
        g = h[b, i, t:T].discounted_sum(0.9)
        loss = (g * g)[0:B, i, 0:T].mean()
        loss.backward(wrt=[w])
        w[i + 1] = w - 0.1 * w.grad
        rc.output(loss=loss, w=w, last=h[b, i, T - 1], x=x, n=rc.value(T))
        end = rc.until(x + 1.5 > limit, max=bound) if dynamic else bound
    return ctx.compile({B: len(ends), I: 3, T: end}, backend=backend).run(), len(calls)


@BACKENDS
def test_the_host_is_not_called_once_all_rows_have_ended(backend: str) -> None:
    got, calls = on_host(backend, (5, 5), 9)
    want, _ = on_host(backend, (5, 5), 5, dynamic=False)
    assert calls == 3 * 5
    for name in ("loss", "w", "last"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)
    np.testing.assert_array_equal(got["x"][..., :5], want["x"])
    np.testing.assert_array_equal(got["x"][..., 5:], 0)
    got, calls = on_host(backend, (3, 5, 2), 9)
    assert calls == 3 * 5
    np.testing.assert_array_equal(got["n"][:, 0], [3, 5, 2])


@BACKENDS
def test_time_may_come_first(backend: str) -> None:
    ctx = rc.Context(dims="t b")
    with ctx as ((t, T), (b, B)):
        x = rc.like(rc.f32, (t, b))
        x[0, b] = rc.value(b) + 1.0
        x[t + 1, b] = x * 2.0
        rc.output(n=rc.value(T), s=x[0:T, b].sum(), m=x[0:T, 0:B].mean(), last=x[T - 1, b])
        end = rc.until(x > 7.0, max=6)
    got = ctx.compile({T: end, B: 3}, backend=backend).run()
    assert [x.tolist() for x in got.values()] == [[4, 3, 3], [15, 14, 21], 5, [8, 8, 12]]


@BACKENDS
def test_two_times_with_ends_of_their_own(backend: str) -> None:
    ctx = rc.Context(dims="s t b")
    with ctx as ((s, S), (t, T), (b, B)):
        x = rc.like(rc.f32, (s, b))
        x[0, b] = rc.value(b) + 1.0
        x[s + 1, b] = x + 1.0
        y = rc.like(rc.f32, (t, b))
        y[0, b] = x[S - 1, b]
        y[t + 1, b] = y + 1.0
        ends = {S: rc.until(x > 2.5, max=5), T: rc.until(y > 4.5, max=6), B: 2}
        rc.output(total=y[0:T, 0:B].sum(), n=rc.value(T), m=rc.value(S), x=x[0:S, 0:B].sum())
    got = ctx.compile(ends, backend=backend).run()
    assert [x.tolist() for x in got.values()] == [24, [3, 3], [3, 2], 11]


@BACKENDS
def test_rows_are_normalised_by_all_points(backend: str) -> None:
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x, d = rc.input(rc.f32, (b, t), "x"), rc.input(rc.boolean, (b, t), "d")
        m = x[0:B, 0:T].mean()
        v = (x[0:B, 0:T] - m).square().mean()
        w = rc.constant(2.0)
        y = w * (x - m) / v.sqrt()
        y.square()[0:B, 0:T].mean().backward(wrt=[w])
        rc.output(m=m, v=v, g=w.grad)
        end = rc.until(d, max=5)
    points = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    ends = np.arange(5) == np.array([[1], [3], [4]])
    got = ctx.compile({B: 3, T: end}, backend=backend).run(inputs={"x": points, "d": ends})
    there = np.concatenate([points[b, : n + 1] for b, n in enumerate((1, 3, 4))])
    np.testing.assert_allclose(got["m"], there.mean(), rtol=1e-5)
    np.testing.assert_allclose(got["v"], there.var(), rtol=1e-5)
    np.testing.assert_allclose(got["g"], 4.0, rtol=1e-4)


@pytest.mark.parametrize(
    "options", [{"axes": False}, {"scheduler": "isl"}, {"last": True}, {"held": 0.0}, {"rows": 0}]
)
def test_options_change_nothing(options: dict[str, object]) -> None:
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x = rc.like(rc.f32, (b, t))
        x[b, 0] = rc.value(b) + 1.0
        x[b, t + 1] = x * 2.0
        g = x[b, t : rc.min(t + 2, T)].sum()
        rc.output(g=g, s=g[0:B, 0:T].mean())
        end = rc.until(x > 7.0, from_=b, max=6)
    want = ctx.compile({B: 3, T: end}, backend="numpy").run()
    got = ctx.compile({B: 3, T: end}, backend="numpy", **options).run()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value)
