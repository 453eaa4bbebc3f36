"""Rows that the data end, joined, cut and reshaped: as each row alone, and their slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS
from recurra.errors import DomainError

LENGTHS, MOST = (4, 1, 3), 5
BASE = np.asarray([[np.sin(3 * b + t) - 0.3 for t in range(MOST)] for b in range(3)], np.float32)
AT = np.cos(np.arange(2 * MOST + 2)).astype(np.float32)  # so that it matters where elements are

Written = Callable[..., Any]
ByHand = Callable[[np.ndarray], np.ndarray]
MOVES: dict[str, tuple[Written, ByHand]] = {
    "all": (lambda x, b, T: x[b, 0:T], lambda x: x),
    "tile": (lambda x, b, T: x[b, 0:T].tile(2), lambda x: np.tile(x, 2)),
    "repeat": (lambda x, b, T: x[b, 0:T].repeat(2, axis=0), lambda x: np.repeat(x, 2)),
    "concat": (
        lambda x, b, T: rc.concat([x[b, 0:T], x[b, 0:T] * 2.0]),
        lambda x: np.concatenate([x, 2 * x]),
    ),
    "concat before": (
        lambda x, b, T: rc.concat([x[b, 0:T], rc.constant([5.0, 6.0])]),
        lambda x: np.append(x, [5, 6]),
    ),
    "concat after": (
        lambda x, b, T: rc.concat([rc.constant([5.0, 6.0]), x[b, 0:T]]),
        lambda x: np.append([5, 6], x),
    ),
    "scatter": (
        lambda x, b, T: x[b, 0:T].scatter(
            0, rc.constant([2, 0]), x[b, 0] * rc.constant([7.0, 8.0])
        ),
        lambda x: np.where(np.arange(len(x)) == 2, 7 * x[0], np.append(8 * x[0], x[1:])),
    ),
    "scatter of a row": (
        lambda x, b, T: x[b, 0:T].scatter(0, (-x[b, 0:T]).argsort(), x[b, 0:T] ** 2, reduce="add"),
        lambda x: x + (x**2)[np.argsort(np.argsort(-x, kind="stable"))],
    ),
    "reshape": (
        lambda x, b, T: rc.stack([x[b, 0:T], x[b, 0:T] ** 2]).reshape(2 * T),
        lambda x: np.append(x, x**2),
    ),
    "unit axes": (lambda x, b, T: x[b, 0:T].reshape(T, 1).reshape(1, T).sum(axis=0), lambda x: x),
    "stack": (
        lambda x, b, T: rc.stack([x[b, 0:T], x[b, 0:T] ** 2]).sum(axis=0),
        lambda x: x + x**2,
    ),
    "the end": (lambda x, b, T: x[b, 0:T][T - 1 :], lambda x: x[-1:]),
    "sort": (lambda x, b, T: x[b, 0:T].sort(), np.sort),
    "roll": (lambda x, b, T: x[b, 0:T].roll(1), lambda x: np.roll(x, 1)),
    "of concat": (
        lambda x, b, T: rc.concat([x[b, 0:T], x[b, 0:T].flip()]).cumsum().flip(),
        lambda x: np.cumsum(np.append(x, x[::-1]))[::-1],
    ),
}


def weighed(y: np.ndarray) -> float:
    return float((y * AT[: len(y)]).sum())


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MOVES)
def test_each_row_is_moved_as_if_alone(name: str, backend: str) -> None:
    written, move = MOVES[name]
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        w = rc.constant(1.5)
        x = rc.constant(BASE).take(rc.value(b, "i32")).take(rc.value(t, "i32")) * w
        y = written(x, b, T)
        at = rc.arange(y.shape[0], dtype="f32").cos()
        total = (y * at).sum()
        total[0:B].sum().backward(wrt=[w])
        assert w.grad is not None
        rc.output(y=y, total=total, slope=w.grad)
        last = rc.constant(LENGTHS, "i32").take(rc.value(b, "i32")) - 1
        end = rc.until(rc.value(t, "i32") >= last, max=MOST)
    got = ctx.run({B: 3, T: end}, backend=backend)
    for b, n in enumerate(LENGTHS):
        row = move(1.5 * BASE[b, :n])
        np.testing.assert_allclose(got["y"][b, : len(row)], row, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got["y"][b, len(row) :], 0.0)
        np.testing.assert_allclose(got["total"][b], weighed(row), rtol=1e-4, atol=1e-5)
    rows = [BASE[b, :n].astype(np.float64) for b, n in enumerate(LENGTHS)]
    low, high = (sum(weighed(move((1.5 + e) * row)) for row in rows) for e in (-1e-6, 1e-6))
    np.testing.assert_allclose(got["slope"], (high - low) / 2e-6, rtol=1e-4, atol=1e-4)


def program(write: Callable[..., Any]) -> Any:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.value(b) + rc.value(t) - 20.0
        rc.output(y=write(x, b, B, t, T))
        end = rc.until(x >= -17.0, max=6)
    return ctx.run({B: 3, T: end}, backend="numpy")["y"]


def test_rows_are_summed_where_they_have_points() -> None:
    rows = [-20.0 + b + np.arange(4 - b) for b in range(3)]
    want = [sum(float(x[t]) for x in rows if t < len(x)) for t in range(6)]
    np.testing.assert_allclose(program(lambda x, b, B, t, T: x[0:B, 0:T].sum(axis=0)), want)


def test_points_past_all_ends_take_no_part_in_one_row() -> None:
    """The loop has stopped before them; a program that reads one row alone knows that, too."""
    found = program(lambda x, b, B, t, T: x[b, 0:T].sort()[0])
    np.testing.assert_array_equal(found, [-20.0, -19.0, -18.0, -17.0, 0.0, 0.0])


def test_elements_of_several_rows_are_not_joined() -> None:
    with pytest.raises(
        DomainError, match="would join elements of rows that end at different points"
    ):
        program(lambda x, b, B, t, T: x[0:B, 0:T].reshape(-1).sum())


@pytest.mark.parametrize("name", ["flip", "sort", "argsort", "roll", "take", "cut", "topk"])
def test_elements_do_not_go_from_row_to_row(name: str) -> None:
    """Where they would go a row may have ended: what lies past its end was read, and shown."""
    arguments = {"take": ([1, 0], 0), "cut": (0, 2, 0), "roll": (1, 0), "topk": (2, 0)}

    def write(x: Any, b: Any, B: Any, t: Any, T: Any) -> Any:
        y = getattr(x[0:B, 0:T], name)(*arguments.get(name, (0,)))
        return y[0] if name == "topk" else y

    with pytest.raises(DomainError, match="along axis 0 moves elements from row to row"):
        program(write)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_before_one_are_joined_to_it_where_they_have_points(backend: str) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.constant(BASE).take(rc.value(b, "i32")).take(rc.value(t, "i32"))
        rows = x[0:B, 0:T]
        rc.output(total=rows.cumsum(0), times=rows.cumprod(0), largest=rows.cummax(0))
        rc.output(one=rows.index(1, 0), two=rows.index(2, 0).sum(), back=rows.transpose(1, 0))
        last = rc.constant(LENGTHS, "i32").take(rc.value(b, "i32")) - 1
        end = rc.until(rc.value(t, "i32") >= last, max=MOST)
    got = ctx.run({B: 3, T: end}, backend=backend)
    there = np.arange(MOST) < np.array(LENGTHS)[:, None]
    for name, join, none in (
        ("total", np.add, 0.0),
        ("times", np.multiply, 1.0),
        ("largest", np.maximum, -np.inf),
    ):
        want = np.where(there, join.accumulate(np.where(there, BASE, none)), 0.0)
        np.testing.assert_allclose(got[name], want, rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(got["one"], np.where(there, BASE, 0.0)[1])
    np.testing.assert_allclose(got["two"], BASE[2, : LENGTHS[2]].sum(), rtol=1e-6)
    np.testing.assert_array_equal(got["back"], np.where(there, BASE, 0.0).T)


def shares(x: np.ndarray) -> float:
    weight = np.exp(x)
    return float((weight / weight.sum() * x).sum())


RANGES: dict[str, tuple[Written, Callable[[np.ndarray, int], float]]] = {
    "the largest of the last": (
        lambda x, b, t, T: x[b, T - 1 - t : T].max(),
        lambda x, t: x[len(x) - 1 - t :].max(),
    ),
    "shares of the last": (
        lambda x, b, t, T: (x[b, T - 1 - t : T].softmax() * x[b, T - 1 - t : T]).sum(),
        lambda x, t: shares(x[len(x) - 1 - t :]),
    ),
    "the largest of the last two": (
        lambda x, b, t, T: x[b, rc.max(T - 2, 0) : T].max() * x,
        lambda x, t: x[-2:].max() * x[t],
    ),
    "in order": (
        lambda x, b, t, T: x[b, 0 : T - t].sort().cumsum().max(),
        lambda x, t: np.cumsum(np.sort(x[: len(x) - t])).max(),
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RANGES)
def test_ranges_that_only_the_data_know(name: str, backend: str) -> None:
    written, by_hand = RANGES[name]
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        w = rc.constant(1.5)
        x = rc.constant(BASE).take(rc.value(b, "i32")).take(rc.value(t, "i32")) * w
        y = written(x, b, t, T)
        y[0:B, 0:T].sum().backward(wrt=[w])
        assert w.grad is not None
        rc.output(y=y + 0.0 * x, slope=w.grad)
        last = rc.constant(LENGTHS, "i32").take(rc.value(b, "i32")) - 1
        end = rc.until(rc.value(t, "i32") >= last, max=MOST)
    got = ctx.run({B: 3, T: end}, backend=backend)

    def filled(weight: float) -> np.ndarray:
        found = np.zeros((3, MOST))
        for row, n in enumerate(LENGTHS):
            found[row, :n] = [by_hand(weight * BASE[row, :n].astype(float), k) for k in range(n)]
        return found

    np.testing.assert_allclose(got["y"], filled(1.5), rtol=1e-5, atol=1e-6)
    slope = (filled(1.5 + 1e-6).sum() - filled(1.5 - 1e-6).sum()) / 2e-6
    np.testing.assert_allclose(got["slope"], slope, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_slopes_of_what_each_of_all_rows_is_divided_by(name: str, backend: str) -> None:
    """The number of points of a row, copied along the axes of all rows, is that of each of them."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.constant(BASE).take(rc.value(b, "i32")).take(rc.value(t, "i32"))
        pairs = rc.stack([x, x * x])
        each = getattr(pairs[0:B, 0:T], name)(axis=1)
        whole = getattr(pairs[0:B, 0:T], name)(axis=(1, 2))
        (each.square().sum() + whole.square().sum()).backward(wrt=[x])
        rc.output(each=each, whole=whole, slope=x.grad)
        last = rc.constant(LENGTHS, "i32").take(rc.value(b, "i32")) - 1
        end = rc.until(rc.value(t, "i32") >= last, max=MOST)
    got = ctx.run({B: 3, T: end}, backend=backend)
    fold = getattr(np, name)

    def of_rows(base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = [np.stack([r, r * r], 1) for r in (base[k, :n] for k, n in enumerate(LENGTHS))]
        return np.array([fold(r, 0) for r in rows]), np.array([fold(r) for r in rows])

    base, slope, step = BASE.astype(np.float64), np.zeros((3, MOST)), 1e-6
    for row, n in enumerate(LENGTHS):
        for k in range(n):
            sums = []
            for e in (step, -step):
                moved = base.copy()
                moved[row, k] += e
                sums.append(sum(np.square(y).sum() for y in of_rows(moved)))
            slope[row, k] = (sums[0] - sums[1]) / (2 * step)
    each, whole = of_rows(base)
    np.testing.assert_allclose(got["each"], each, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["whole"], whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["slope"], slope, rtol=1e-4, atol=1e-4)
