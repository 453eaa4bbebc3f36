"""Random tables: every cell waits for neighbors along two dims, for rows, borders and draws."""

from __future__ import annotations

import random
from typing import Any

import recurra as rc
from renamed import shuffled

NEAR = [(-1, 0), (0, -1), (-1, -1), (-2, 0), (-1, -2), (-2, 1), (1, -2), (0, -2)]
Table = tuple[rc.Context, dict[Any, int]]


def write(seed: int) -> Table:
    """The program of a seed, one table over s and t made from either corner, and its bounds."""
    pick = random.Random(seed)
    looped = pick.random() < 0.4  # tables one after the other, each from the last cell of another
    ctx = rc.Context(dims=shuffled("b k s t", seed))
    with ctx as ((b, B), (k, K), (s, S), (t, T)):
        bounds = {B: pick.randint(1, 3), K: 2, S: pick.randint(2, 8), T: pick.randint(2, 8)}
        shape = (2,) if pick.random() < 0.4 else ()
        sign = pick.choice((1, -1))
        shifts = [(sign * i, sign * j) for i, j in pick.sample(NEAR, pick.randint(2, 3))]
        row = (b, k) if looped else (b,)
        x, y = rc.uniform((b, s), shape) - 0.4, rc.uniform((b, t), shape) - 0.6
        cell = rc.uniform((*row, s), shape)[(*row, s)] * rc.value(t - 2 * s, "f32")
        made = rc.uniform((b, s, t), shape)
        table = made[b, s, 0:T].cumsum(axis=0).index(t)  # of cells that are made before
        leaves = [x, y, x[b, S - 1 - s] * y[b, T - 1 - t], cell, made, table]

        d = rc.like(rc.f32[shape], domain=(*row, s, t))
        near = [d[(*row, s + i, t + j)] for i, j in shifts]
        inside = _inside(shifts, (s, S), (t, T))
        value = pick.choice(leaves)
        for neighbor in near:
            value = _joined(pick, value, neighbor)
        if shape and pick.random() < 0.5:
            w = rc.constant([[0.5, -0.3], [0.2, 0.7]])
            value = w @ value
        start = pick.choice(leaves)
        if looped:
            first = rc.like(rc.f32[shape], domain=row)
            first[b, 0] = x[b, 0]
            first[b, k + 1] = d[b, k, S - 1, T - 1] * 0.5
            start = start + first
        d[inside] = value.tanh()
        if pick.random() < 0.5:
            d[s == 0] = start + 1.0
        d[(*row, s, t)] = start
        rc.output(last=d[(*row, S - 1, T - 1)])
        shown = pick.choice(("all", "row", "sum", "cell", "none"))
        if shown == "all":
            rc.output(d=d)
        elif shown == "row":
            rc.output(row=d[(*row, 0, slice(0, T))].sum(axis=0))
        elif shown == "sum":
            rc.output(sum=d[(*row, slice(0, S), t)].sum(axis=0))
        elif shown == "cell":
            rc.output(cell=(d * y)[(*row, S - 1, t)], made=made)
        if shape == () and pick.random() < 0.3:
            w = rc.constant(0.5)
            loss = (d * w)[(*row, S - 1, T - 1)].square()
            loss.backward(wrt=[w])
            rc.output(slope=w.grad)
    return ctx, bounds


def _inside(shifts: list[tuple[int, int]], *dims: tuple[Any, Any]) -> Any:
    """The cells all of whose neighbors are on the table."""
    out = None
    for (dim, bound), steps in zip(dims, zip(*shifts, strict=True), strict=True):
        for c in (dim >= -min(0, *steps), dim < bound - max(0, *steps)):
            out = c if out is None else out & c
    return out


def _joined(pick: random.Random, a: Any, b: Any) -> Any:
    return pick.choice(
        (
            lambda: a + b * 0.5,
            lambda: rc.minimum(a, b),
            lambda: rc.where(a > b, a, b * 0.9),
            lambda: a * b - 0.1,
        )
    )()
