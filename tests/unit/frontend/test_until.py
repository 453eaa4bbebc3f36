"""Bounds that the data set: each row is what a program of its own length would make of it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import recurra as rc
from ended_rows import by_backend, same
from fuzzing import each, seeded_at_length
from random_rows import MOST, Rows, expected, write
from recurra.analysis.safety import check_safety
from recurra.errors import DomainError
from recurra.reference import interpreter
from recurra.transforms.early_exit.lower_until import Ending, end_rows

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])


def ended(rows: Rows):
    check_safety(rows.graph, rows.bounds, {rows.until: MOST})
    return end_rows(rows.graph, rows.until, Ending("done", rows.first_point, MOST))


def by_interpreter(seed: int) -> None:
    rows, sums = write(seed, mean=True), write(seed, mean=False)
    graph = ended(rows)
    inputs = {n: x for n, x in rows.inputs.items() if n in graph.nodes}
    got = interpreter.run(graph, rows.bounds, inputs)
    by_name = dict(zip(rows.graph.outputs, graph.outputs, strict=True))
    same({n: got[by_name[e]] for n, e in rows.names.items()}, expected(rows, sums))


WENT_WRONG = (1011, 1118, 1198)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(30), *WENT_WRONG])
def test_every_row_is_what_it_is_alone(seed: int) -> None:
    by_interpreter(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("seed", [*range(0, 24, 3), *WENT_WRONG])
@BACKENDS
def test_backends(seed: int, backend: str) -> None:
    by_backend(seed, backend)


@seeded_at_length()
def test_every_row_is_what_it_is_alone_long(seeds: range) -> None:
    each(seeds, by_interpreter)


@seeded_at_length(0.2)
@BACKENDS
def test_backends_long(seeds: range, backend: str) -> None:
    each(seeds, lambda seed: by_backend(seed, backend, 1 + seed % 5))


def by_rows_alike(seed: int, backend: str) -> None:
    """Rows of rows that all have so many points are those of numbers for both bounds."""
    rows, pick = write(seed, mean=True, nested=True), random.Random(seed)
    (_, B), (_, S), (_, T) = rows.ctx.pairs
    n, m = pick.randint(1, 3), pick.randint(4, MOST)
    given = {**rows.inputs, "done": np.tile(np.arange(MOST) == m - 1, (2, 3, 1))}
    given["stop"] = np.tile(np.arange(3) == n - 1, (2, 1))
    ends = {S: rc.until(rows.stop, max=3), T: rc.until(rows.done, from_=rows.first, max=MOST)}
    program = rows.ctx.compile({B: 2, **ends}, backend=backend)
    got = program.run(inputs={k: x for k, x in given.items() if k in program.inputs})
    fixed = rows.ctx.compile({B: 2, S: n, T: m}, backend=backend)
    box = (slice(None), slice(n), slice(m))
    mine = {k: x[box[: x.ndim]] for k, x in given.items() if k in fixed.inputs}
    want = fixed.run(inputs=mine)
    for name in want.keys() - {"count"}:
        alike = np.zeros_like(got[name])
        alike[tuple(map(slice, want[name].shape))] = want[name]
        np.testing.assert_allclose(got[name], alike, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_rows_of_rows_alike(seed: int) -> None:
    by_rows_alike(seed, "numpy")


@seeded_at_length(0.3)
def test_rows_of_rows_alike_long(seeds: range) -> None:
    each(seeds, lambda seed: by_rows_alike(seed, "numpy"))


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


@pytest.mark.slow
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


def test_a_row_that_overflows_past_its_end_is_not_in_gradients() -> None:
    """A row that goes on past its end until all have ended may grow beyond all numbers."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        w = rc.constant(np.full(4, 0.5, np.float32))
        x = rc.like(rc.f32[4], domain=(b, t))
        x[b, 0] = rc.constant(np.ones(4, np.float32)) * (b + 1.0)
        x[b, t + 1] = x * rc.constant(np.array([1000.0, 0.5], np.float32)).index(b)
        loss = (x @ w).tanh()[0:B, 0:T].sum()
        loss.backward(wrt=[w])
        rc.output(d_w=w.grad)
        last = rc.constant(np.array([1, 30])).index(b)
        end = rc.until(rc.value(t) >= last, max=40)
    rows = 1000.0 ** np.arange(2), 2 * 0.5 ** np.arange(31)
    want = sum((x / np.cosh(np.minimum(2 * x, 100)) ** 2).sum() for x in rows)
    got = ctx.compile({B: 2, T: end}, backend="numpy").run()["d_w"]
    np.testing.assert_allclose(got, np.full(4, want), rtol=1e-5)


@BACKENDS
def test_what_no_row_may_ask_for_is_not_asked_for_past_its_end(backend: str) -> None:
    """An index that leaves its table, a divisor that becomes zero."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        table = rc.constant(np.arange(1.0, 6.0, dtype=np.float32))
        k = rc.like(rc.i32, domain=(b, t))
        k[b, 0] = rc.value(b, "i32")
        k[b, t + 1] = k + 1
        y = table.take(k)
        behind = table.take(k[b, rc.max(t - 1, 0) : t + 1]).sum()
        ahead = table.take(k[b, t:T]).sum()
        rest = rc.value(7) % (5 - k)
        rc.output(y=y, behind=behind, ahead=ahead, rest=rest, all=y[0:B, 0:T].sum())
        end = rc.until(k >= 4, max=9)
    got = ctx.compile({B: 3, T: end}, backend=backend).run()
    y = np.zeros((3, 9))
    want = {"y": y, "behind": y.copy(), "ahead": y.copy(), "rest": y.copy()}
    for row in range(3):
        mine = np.arange(row + 1.0, 6.0)
        n = len(mine)
        want["y"][row, :n] = mine
        want["behind"][row, :n] = mine + np.concatenate([[0], mine[:-1]])
        want["ahead"][row, :n] = mine[::-1].cumsum()[::-1]
        want["rest"][row, :n] = 7 % (6 - mine)
    want["all"] = want["y"].sum()
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x, err_msg=name)


def test_the_maximum_of_no_points_is_not_in_gradients() -> None:
    """What is past the end of a row is the maximum of nothing."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        w = rc.constant(np.float32(0.5))
        x = rc.value(t, "f32") - rc.value(b, "f32")
        ahead = x[b, t:T]
        rc.output(square=rc.einsum("k,k->", ahead, ahead))
        loss = (ahead.max() * w)[0:B, 0:T].sum()
        loss.backward(wrt=[w])
        rc.output(d_w=w.grad)
        end = rc.until(x >= 2.0, max=9)
    got = ctx.compile({B: 3, T: end}, backend="numpy").run()["d_w"]
    assert got == 2 * (3 + 4 + 5)


@BACKENDS
def test_ranges_that_begin_or_stop_near_the_end(backend: str) -> None:
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x = rc.value(t, "f32") * 2.0 - rc.value(b, "f32")
        late, early = x[b, rc.max(T - 3, 0) : T], x[b, 0 : rc.max(T - 2, 1)]
        rc.output(late=late.sum(), mean=late.mean(), least=late.min(), most=early.max())
        end = rc.until(rc.value(t) >= b, max=6)
    got = ctx.compile({B: 5, T: end}, backend=backend).run()
    rows = [2.0 * np.arange(row + 1) - row for row in range(5)]
    late, early = [r[-3:] for r in rows], [r[: max(len(r) - 2, 1)] for r in rows]
    want = {"late": map(np.sum, late), "mean": map(np.mean, late)}
    want |= {"least": map(np.min, late), "most": map(np.max, early)}
    for name, x in want.items():
        np.testing.assert_allclose(got[name], list(x), rtol=1e-6, err_msg=name)


def test_what_ends_rows_may_be_given_a_name_behind_it() -> None:
    """The block's end calls it like the variable that holds it, and an output like its key."""
    for key in ("done", "over"):
        ctx = rc.Context(dims="b t")
        with ctx as ((b, B), (t, T)):
            x = rc.value(t) + rc.value(b)
            done = x > 2.0
            end = rc.until(done, max=5)
            rc.output(x=x, **{key: done})
        got = ctx.run({B: 2, T: end}, backend="numpy")
        assert got["x"].tolist() == [[0, 1, 2, 3, 0], [1, 2, 3, 0, 0]]
        assert got[key].sum(axis=1).tolist() == [1, 1]


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
def test_rows_over_a_loop_go_on_from_the_end_of_the_row_before(backend: str) -> None:
    """A row for each (b, s), of which the data of both dims say where it ends."""
    ctx = rc.Context(dims="b s t")
    with ctx as ((b, B), (s, S), (t, T)):
        u = rc.input(rc.f32, (b, s, t), name="u")
        h = rc.like(rc.f32, (b, s, t))
        h[b, 0, 0] = 1.0
        h[b, s, 0] = 0.5 * h[b, s - 1, T - 1]
        h[b, s, t] = h[b, s, t - 1] + u
        last = rc.like(rc.f32, (b, s))
        last[b, s] = h[b, s, T - 1]
        rc.output(last=last, n=rc.value(T), total=h[0:B, 0:S, 0:T].sum())
        end = rc.until(u > 0.6, max=5)
    given = np.random.default_rng(5).uniform(size=(3, 4, 5)).astype(np.float32)
    lasts, counts, total = np.zeros((3, 4)), np.zeros((3, 4)), 0.0
    for row, row_u in enumerate(given):
        x = 2.0
        for k, points in enumerate(row_u):
            count = int(np.argmax([*(points > 0.6)[:4], True])) + 1
            x *= 0.5
            total += x
            for now in points[1:count]:
                x += now
                total += x
            lasts[row, k], counts[row, k] = x, count
    got = ctx.compile({B: 3, S: 4, T: end}, backend=backend).run(inputs={"u": given})
    np.testing.assert_allclose(got["last"], lasts, rtol=1e-5)
    np.testing.assert_array_equal(got["n"], counts)
    np.testing.assert_allclose(got["total"], total, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@BACKENDS
@pytest.mark.parametrize("points", [1, 2, 3, 5])
def test_all_rows_end_at_one_point(points: int, backend: str) -> None:
    """The loop stops there, and what would be computed later only is not what is read."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        u = rc.input(rc.f32, (b, t), "u")
        h = rc.like(rc.f32, (b, t))
        h[b, 0] = 1.0
        h[b, t] = h[b, t - 1] + u
        last = h[b, T - 1] * 1.0
        last[0:B].sum().backward(wrt=[u])
        rc.output(last=last, slope=u.grad, third=h[b, rc.min(2, T - 1)] + 0.0)
        rc.output(longer=rc.where(T >= 5, h[b, 0], 2.0), most=h[b, 0:T].max(), n=rc.value(T))
        end = rc.until(u > 0.5, max=5)
    given = np.full((2, 5), 0.25, np.float32)
    given[:, points - 1] = 0.75
    got = ctx.compile({B: 2, T: end}, backend=backend).run(inputs={"u": given})
    path = 1.0 + np.cumsum([0.0, *given[0, 1:points]])
    want = {"last": path[-1], "third": path[: min(3, points)][-1], "most": path[-1], "n": points}
    want["longer"] = 1.0 if points == 5 else 2.0
    for name, value in want.items():
        np.testing.assert_allclose(got[name], [value] * 2, err_msg=name)
    slope = (np.arange(5) >= 1) & (np.arange(5) < points)
    np.testing.assert_allclose(got["slope"], [slope] * 2)


MOST_ROWS, MOST_POINTS = 4, 5


def rows_of_rows(u: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """By hand: rows of points end at u > 0.6, the row of them once one sums up to more than 2.2."""
    shape = (len(v), MOST_ROWS)
    h, total, last, count = np.zeros(u.shape), *(np.zeros(shape) for _ in range(3))
    rows, most, slope = np.zeros(len(v)), np.zeros(len(v)), np.zeros(len(v))
    for b, x in enumerate(v.astype(float)):
        factor = 1.0
        for s in range(MOST_ROWS):
            x, factor = (x, factor) if s == 0 else (0.5 * x, 0.5 * factor)
            for t in range(MOST_POINTS):
                x += u[b, s, t] if t else 0.0
                h[b, s, t] = x
                slope[b] += 2 * x * factor
                if u[b, s, t] > 0.6:
                    break
            count[b, s], last[b, s], total[b, s] = t + 1, x, h[b, s].sum()
            if total[b, s] > 2.2:
                break
        rows[b], most[b] = s + 1, h[b].max()
    points = count.sum()
    return {
        **{"h": h, "total": total, "last": last, "count": count, "rows": rows, "most": most},
        **{"end": last[np.arange(len(v)), rows.astype(int) - 1], "all": h.sum()},
        **{"mean": h.sum() / points, "points": points, "slope": slope},
        "per_row": total.sum(axis=1) / rows,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@BACKENDS
@pytest.mark.parametrize("dims", ["b s t", "s b t", "s t b"])
def test_rows_of_rows(dims: str, backend: str) -> None:
    """The data end rows of points, and rows of such rows: whatever the rest of them would be."""
    ctx = rc.Context(dims=dims)
    with ctx as pairs:
        by_name = dict(zip(dims.split(), pairs, strict=True))
        (b, B), (s, S), (t, T) = (by_name[d] for d in "bst")

        def at(**index: Any) -> Any:
            return tuple(index[d] for d in dims.split() if d in index)

        u = rc.input(rc.f32, at(b=b, s=s, t=t), "u")
        v = rc.input(rc.f32, (b,), "v")
        h = rc.like(rc.f32, at(b=b, s=s, t=t))
        h[at(b=b, s=0, t=0)] = v
        h[at(b=b, s=s, t=0)] = 0.5 * h[at(b=b, s=s - 1, t=T - 1)]
        h[at(b=b, s=s, t=t)] = h[at(b=b, s=s, t=t - 1)] + u
        total = h[at(b=b, s=s, t=slice(0, T))].sum()
        last = h[at(b=b, s=s, t=T - 1)] * 1.0
        most = h[at(b=b, s=s, t=slice(0, T))].max()
        every = at(b=slice(0, B), s=slice(0, S), t=slice(0, T))
        rc.output(h=h, total=total, last=last, count=rc.value(T), rows=rc.value(S))
        rc.output(most=most[at(b=b, s=slice(0, S))].max(), end=last[at(b=b, s=S - 1)])
        rc.output(all=h[every].sum(), mean=h[every].mean(), points=rc.value(B * S * T))
        rc.output(per_row=total[at(b=b, s=slice(0, S))].mean())
        h.square()[every].sum().backward(wrt=[v])
        rc.output(slope=v.grad)
        ends = {S: rc.until(total > 2.2, max=MOST_ROWS), T: rc.until(u > 0.6, max=MOST_POINTS)}
    program = ctx.compile({B: 2, **ends}, backend=backend)
    axes = tuple("bst".index(d) for d in dims.split())
    for seed in (6, 9, 12, 14, 24) if backend == "numpy" else (6, 9):
        rng = np.random.default_rng(seed)
        given = rng.uniform(size=(2, MOST_ROWS, MOST_POINTS)).astype(np.float32)
        first = rng.uniform(size=2).astype(np.float32)
        got = program.run(inputs={"u": given.transpose(axes), "v": first})
        for name, want in rows_of_rows(given, first).items():
            turned = want.transpose(axes) if want.ndim == 3 else want
            turned = want.T if want.ndim == 2 and dims[0] == "s" else turned
            np.testing.assert_allclose(got[name], turned, 2e-4, 1e-5, err_msg=f"{name}, {seed}")


@BACKENDS
def test_what_has_ended_calls_no_host(backend: str) -> None:
    """Rows that are points of one that has ended have none, however long they would be."""
    calls: list[int] = []

    def count(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x + 1

    ctx = rc.Context(dims="b s t")
    with ctx as ((b, B), (s, S), (t, T)):
        limit = rc.like(rc.f32, (b, s))
        limit[b, 0] = rc.value(b) * 2.0 + 1.0
        limit[b, s] = limit[b, s - 1] * 3.0
        x = rc.like(rc.f32, (b, s, t))
        x[b, s, 0] = 0.0
        x[b, s, t + 1] = rc.call(count, rc.f32, x, batch=(b,))
        rc.output(n=x[b, s, T - 1] * 1.0, total=x[0:B, 0:S, 0:T].sum())
        ends = {S: rc.until(limit > 5.0, max=4), T: rc.until(x + 1.0 >= limit, max=200)}
    got = ctx.compile({B: 2, **ends}, backend=backend).run()
    np.testing.assert_array_equal(got["n"], [[0, 2, 8, 0], [2, 8, 0, 0]])
    assert got["total"] == 0 + 3 + 36 + 3 + 36
    assert len(calls) == 3 + 9 + 9, "as many points as the longest row has, for every s"


def test_rows_that_end_each_other_are_refused() -> None:
    ctx = rc.Context(dims="s t")
    with ctx as ((s, S), (t, T)):
        u = rc.uniform((s, t))
        rc.output(u=u)
        ends = {S: rc.until(u > 0.9, max=4), T: rc.until(u < 0.4, max=5)}
    with pytest.raises(DomainError, match="S ends rows that T ends points of, and the other way"):
        ctx.compile(ends, backend="numpy")


@BACKENDS
def test_rows_are_normalized_by_all_points(backend: str) -> None:
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


OPTIONS = {"vectorized": False, "scheduler": "isl", "batch_last": True, "memory_price": 0.0}


@pytest.mark.parametrize("option", [*OPTIONS.items(), ("tile_rows", 0)])
def test_options_change_nothing(option: tuple[str, object]) -> None:
    options = dict([option])
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


@BACKENDS
def test_a_loop_backwards_reads_what_is_past_all_ends(backend: str) -> None:
    """The largest of negative numbers is not the zero of an empty store."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32, (b, t), name="x")
        h, u = rc.like(rc.f32, domain=(b, t)), rc.like(rc.f32, domain=(b, t))
        u[t == T - 1] = x * 0.5
        u[b, t] = x * 0.5 + u[b, t + 1] * 0.1
        h[t == T - 1] = x
        h[b, t] = u[b, t:T].argmax().cast("f32") + 0.5 * h[b, t + 1]
        rc.output(h=h, all=h[0:B, 0:T].sum())
        end = rc.until(x > -0.2, max=9)
    given = -np.linspace(0.3, 0.9, 18, dtype=np.float32).reshape(2, 9)[:, ::-1].copy()
    given[:, 4] = -0.1  # both rows end there
    program = ctx.compile({B: 2, T: end}, backend=backend)
    want = np.zeros((2, 9))
    for row in range(2):
        own, u = given[row, :5], given[row, :5] * 0.5
        for k in range(3, -1, -1):
            u[k] += np.float32(0.1) * u[k + 1]
        want[row, 4] = own[4]
        for k in range(3, -1, -1):
            want[row, k] = u[k:].argmax() + 0.5 * want[row, k + 1]
    np.testing.assert_allclose(program.run(inputs={"x": given})["h"], want, rtol=1e-5)
