"""Rows in rows, both ended by the data: a loop does not end what is at points of the row before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc

X = np.random.default_rng(1).uniform(0.1, 1.0, (2, 3, 4)).astype("f4")
Chosen = Callable[[Any, Any, Any, Any], Any]
CHOSEN: dict[str, Chosen] = {
    "the last row": lambda s, S, t, T: s == S - 1,
    "its last point": lambda s, S, t, T: (t == T - 1) & (s == S - 1),
    "the last row, or last points": lambda s, S, t, T: (t == T - 1) | (s == S - 1),
    "the first point of the last row": lambda s, S, t, T: (s == S - 1) & (t == 0),
    "all rows but the last": lambda s, S, t, T: s < S - 1,
    "the last two rows": lambda s, S, t, T: s >= S - 2,
}


def lengths() -> list[list[int]]:
    """Of each row in the rows that there are: points until their sum is past 1.2, rows past 2.5."""
    out: list[list[int]] = []
    for rows in X:
        total, mine = 0.0, list[int]()
        for row in rows:
            past = np.cumsum(row) > 1.2
            mine.append(int(np.argmax(past)) + 1 if past.any() else len(row))
            total += row[: mine[-1]].sum()
            if total > 2.5:
                break
        out.append(mine)
    return out


@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_what_waits_for_the_end_of_a_row_of_rows(chosen: Chosen, backend: str) -> None:
    """The loop over the points of a row ended with those of the next row: zeros were left."""
    ctx = rc.Context(dims="b s t")
    with ctx as ((b, B), (s, S), (t, T)):
        x = rc.input(rc.f32, (b, s, t), name="x")
        row_ends = rc.until(x[b, s, 0 : t + 1].sum() > 1.2, max=4)
        total = x[b, s, 0:T].sum()
        rows_end = rc.until(total[b, 0 : s + 1].sum() > 2.5, max=3)
        rc.output(y=rc.where(chosen(s, S, t, T), x, 0.0))
    got = ctx.run({B: 2, S: rows_end, T: row_ends}, inputs={"x": X}, backend=backend)["y"]
    want = np.zeros(X.shape, "f4")
    for k, mine in enumerate(lengths()):
        for row, points in enumerate(mine):
            for point in range(points):
                if chosen(row, len(mine), point, points):
                    want[k, row, point] = X[k, row, point]
    assert {len(mine) for mine in lengths()} == {2}
    np.testing.assert_array_equal(got, want)
