"""Rows that the data end, folded into one as long as the longest; elements of a row by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import DomainError

MOST = 5
X = np.random.default_rng(1).uniform(0.2, 1.0, (3, MOST))
LENGTHS = (2, 4, 3)
DONE = np.zeros(X.shape, bool)
DONE[range(3), [n - 1 for n in LENGTHS]] = True
ROWS = [x[:n] for x, n in zip(X, LENGTHS, strict=True)]
COLUMNS = [np.array([r[t] for r in ROWS if t < len(r)]) for t in range(max(LENGTHS))]
BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])

Write = Callable[..., Any]


def run(write: Write, backend: str = "numpy") -> Any:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f64, (b, t), name="x")
        done = rc.input(rc.boolean, (b, t), name="done")
        rc.output(y=write(x, b, B, t, T))
    bounds = {B: 3, T: rc.until(done, max=MOST)}
    return ctx.compile(bounds, backend=backend).run(inputs={"x": X, "done": DONE})["y"]


FOLDED: dict[str, tuple[Write, Any]] = {
    "sum of sums": (lambda x, b, B, t, T: x[0:B, 0:T].sum(axis=0).sum(), sum(map(sum, ROWS))),
    "largest of sums": (
        lambda x, b, B, t, T: x[0:B, 0:T].sum(axis=0).max(),
        max(c.sum() for c in COLUMNS),
    ),
    "sum of the largest": (
        lambda x, b, B, t, T: x[0:B, 0:T].max(axis=0).sum(),
        sum(c.max() for c in COLUMNS),
    ),
    "smallest of sums": (
        lambda x, b, B, t, T: x[0:B, 0:T].sum(axis=0).min(),
        min(c.sum() for c in COLUMNS),
    ),
    "weighed and squared": (
        lambda x, b, B, t, T: rc.einsum("bt,b->t", x[0:B, 0:T], x[0:B, 0]).square().sum(),
        sum(sum(r[t] * r[0] for r in ROWS if t < len(r)) ** 2 for t in range(4)),
    ),
    "a new axis of as many rows": (
        lambda x, b, B, t, T: (x[0:B, 0].reshape(-1, 1) * x[0:B, 0:T].sum(axis=0)).sum(),
        X[:, 0].sum() * sum(map(sum, ROWS)),
    ),
    "sorted": (
        lambda x, b, B, t, T: x[0:B, 0:T].sum(axis=0).sort().index(0),
        min(c.sum() for c in COLUMNS),
    ),
    "host_loops": (
        lambda x, b, B, t, T: (rc.arange(T) / rc.value(T)).sum(),
        [(n - 1) / 2 for n in LENGTHS],
    ),
    "ones": (lambda x, b, B, t, T: rc.ones((T,)).sum(), LENGTHS),
    "the largest of what is counted": (lambda x, b, B, t, T: (rc.arange(T) * 2).max(), [2, 6, 4]),
    "counted beside a row": (
        lambda x, b, B, t, T: (rc.arange(T) * x[b, 0:T]).sum(),
        [(np.arange(len(r)) * r).sum() for r in ROWS],
    ),
}


@pytest.mark.parametrize(("write", "want"), FOLDED.values(), ids=FOLDED)
def test_folded(write: Write, want: Any) -> None:
    np.testing.assert_allclose(run(write), want, rtol=1e-6)


@pytest.mark.slow
@BACKENDS
def test_folded_on_backends(backend: str) -> None:
    for write, want in FOLDED.values():
        np.testing.assert_allclose(run(write, backend), want, rtol=1e-6)


PICKED: dict[str, tuple[Write, Callable[[np.ndarray], Any]]] = {
    "the median": (lambda x, b, B, t, T: x[b, 0:T].sort().index(T // 2), lambda r: len(r) // 2),
    "the last": (lambda x, b, B, t, T: x[b, 0:T].sort().index(-1), lambda r: len(r) - 1),
    "the first": (lambda x, b, B, t, T: x[b, 0:T].sort().index(0), lambda r: 0),
    "one of two": (
        lambda x, b, B, t, T: x[b, 0:T].sort()[b][rc.min(2, T - 1)],
        lambda r: min(2, len(r) - 1),
    ),
}


@pytest.mark.parametrize(("write", "at"), PICKED.values(), ids=PICKED)
def test_an_element_of_a_sorted_row_and_its_slope(
    write: Write, at: Callable[[np.ndarray], int]
) -> None:
    def slope(x: Any, b: Any, B: Any, t: Any, T: Any) -> Any:
        (write(x, b, B, t, T).square() * 0.5)[0:B].sum().backward(wrt=[x])
        return x.grad

    values = [np.sort(r)[at(r)] for r in ROWS]
    want = np.zeros(X.shape)
    for b, value in enumerate(values):
        want[b, list(ROWS[b]).index(value)] = value
    np.testing.assert_allclose(run(write), values, rtol=1e-6)
    np.testing.assert_allclose(run(slope), want, rtol=1e-6)


def test_the_future_backwards_and_its_slope() -> None:
    """The last element of x[b, t:T], sorted: the largest that is to come."""

    def write(x: Any, b: Any, B: Any, t: Any, T: Any) -> Any:
        x[b, t:T].sort().index(T - 1 - t)[0:B, 0:T].sum().backward(wrt=[x])
        return x.grad

    want = np.zeros(X.shape)
    for b, row in enumerate(ROWS):
        for t in range(len(row)):
            want[b, t + row[t:].argmax()] += 1.0
    np.testing.assert_allclose(run(write), want)


def by_number(t: Any, T: Any) -> Any:
    y = rc.like(rc.f64, (t,))
    y[t < T // 2] = 1.0
    y[T - 1] = 2.0
    y[t] = rc.value(t)
    return y


CHOSEN: dict[str, tuple[Write, Callable[[int, int], float]]] = {
    "by half": (
        lambda x, b, B, t, T: rc.where(t < T // 2, 1.0, 3.0),
        lambda t, n: [3, 1][t < n // 2],
    ),
    "the last": (lambda x, b, B, t, T: rc.where(t == T - 1, 1.0, 0.0), lambda t, n: t == n - 1),
    "odd rows": (lambda x, b, B, t, T: rc.where(T % 2 == 0, t, 0), lambda t, n: t * (n % 2 == 0)),
    "branches": (
        lambda x, b, B, t, T: by_number(t, T),
        lambda t, n: 1.0 if t < n // 2 else 2.0 if t == n - 1 else t,
    ),
}


@pytest.mark.parametrize(("write", "want"), CHOSEN.values(), ids=CHOSEN)
def test_numbers_chosen_by_the_end_of_a_row(
    write: Write, want: Callable[[int, int], float]
) -> None:
    """They were refused as of no row, or crashed."""
    rows = np.zeros(X.shape)
    for b, n in enumerate(LENGTHS):
        rows[b, :n] = [want(t, n) for t in range(n)]
    np.testing.assert_allclose(run(write), rows)


DIFFER: dict[str, Write] = {
    "a row and all rows": lambda x, b, B, t, T: (x[b, 0:T] * x[0:B, 0:T]).sum(axis=1),
    "all rows and a row": lambda x, b, B, t, T: (x[0:B, 0:T] * x[b, 0:T]).sum(axis=1),
    "two rows": lambda x, b, B, t, T: (x[b, 0:T] * x[0, 0:T]).sum(),
    "their product": lambda x, b, B, t, T: x[b, 0:T] @ x[0, 0:T],
    "the longest and its own": lambda x, b, B, t, T: (x[b, 0:T] - x[0:B, 0:T].sum(axis=0)).sum(),
}


@pytest.mark.parametrize("write", DIFFER.values(), ids=DIFFER)
def test_rows_of_different_lengths_do_not_meet(write: Write) -> None:
    """What lies past the end of the shorter one was read."""
    with pytest.raises(DomainError, match="takes rows that end at different points"):
        run(write)
