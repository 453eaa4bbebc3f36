"""Rows that the data end are what the interpreter makes of each alone, with its length as a number.

A program is a value over (b, t), or a recurrence; slopes are those of the sum of squares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS, interpreted

X = np.array(
    [
        [0.81, 0.62, 0.53, 0.54, 0.95, 0.96],  # ends after 4 points,
        [2.1, 0.52, 0.73, 0.84, 0.65, 0.56],  # 1,
        [0.97, 1.58, 0.79, 0.81, 0.62, 0.53],  # 2,
        [0.11, 0.32, 0.23, 0.24, 0.15, 0.16],  # and all 6
    ]
)
LENGTHS = (4, 1, 2, 6)
Body = Callable[..., Any]


def backward(step: Body) -> Body:
    """y[T-1] = x, and before it what `step` makes of later points."""

    def body(x: Any, b: Any, t: Any, T: Any) -> Any:
        y = rc.like(rc.f64, (b, t), name="y")
        y[b, T - 1] = x
        y[b, t] = step(y, x, b, t, T)
        return y

    return body


def forward(step: Body) -> Body:
    """y[0] = x, and after it what `step` makes of earlier points."""

    def body(x: Any, b: Any, t: Any, T: Any) -> Any:
        y = rc.like(rc.f64, (b, t), name="y")
        y[b, 0] = x
        y[b, t] = step(y, x, b, t, T)
        return y

    return body


PROGRAMS: dict[str, Body] = {
    # ranges without points where no branch reads them
    "window's maximum": forward(lambda y, x, b, t, T: x[b, rc.max(t - 2, 0) : t].max() + x),
    "own window's maximum": forward(
        lambda y, x, b, t, T: y[b, rc.max(t - 2, 0) : t].max() * 0.5 + x
    ),
    "maximum ahead": backward(lambda y, x, b, t, T: x[b, t + 1 : rc.min(t + 3, T)].max() + x),
    "maximum of the rest": backward(lambda y, x, b, t, T: y[b, t + 1 : T].max() * 0.3 + x),
    # windows of a loop that goes back from where a row ends, after a longer row
    "sum ahead": backward(lambda y, x, b, t, T: y[b, t + 1 : rc.min(t + 3, T)].sum() * x),
    "maximum of negatives ahead": backward(
        lambda y, x, b, t, T: (y[b, t + 1 : rc.min(t + 3, T)] - 9.0).max() * x
    ),
    # ranges that begin or stop at points that only the data know
    "sum of the last": lambda x, b, t, T: x[b, T - 1 - t : T].sum() * x,
    "mean of the last": lambda x, b, t, T: x[b, T - 1 - t : T].mean() * x,
    "sum of the first": lambda x, b, t, T: x[b, 0 : T - t].sum() * x,
    # arrays of numbers, which each row has for itself
    "deviation": lambda x, b, t, T: x[b, 0:T].std() + x,
    "rolled": lambda x, b, t, T: (x[b, 0:T].roll(1) * x[b, 0:T]).sum() * x,
}

VALUES: dict[str, Body] = {  # whose slopes have no order yet
    "own last point": backward(lambda y, x, b, t, T: y[b, t + 1] * 0.5 + x * y[b, T - 1]),
}


def program(body: Body, slopes: bool) -> tuple[rc.Context, Any, Any, Any]:
    """A context, its bounds, and where its rows end."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f64, (b, t), name="x")
        y = body(x, b, t, T)
        rc.output(y=y)
        if slopes:
            y.square()[0:B, 0:T].sum().backward(wrt=[x])
            assert x.grad is not None
            rc.output(slope=x.grad)
        end = rc.until(x[b, 0 : t + 1].sum() > 2.0, max=X.shape[1])
    return ctx, B, T, end


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("name", [*PROGRAMS, *VALUES])
def test_each_row_is_what_it_is_alone(name: str) -> None:
    ctx, B, T, end = program({**PROGRAMS, **VALUES}[name], slopes=name in PROGRAMS)
    want = {k: np.zeros(X.shape) for k in (("y", "slope") if name in PROGRAMS else ("y",))}
    for b, length in enumerate(LENGTHS):
        alone = interpreted(ctx, {B: 1, T: length}, {"x": X[b : b + 1, :length]})
        for k, rows in want.items():
            rows[b, :length] = alone[k][0]
    for backend in BACKENDS:
        found = ctx.compile({B: len(X), T: end}, backend=backend).run(inputs={"x": X})
        for k, rows in want.items():
            np.testing.assert_allclose(found[k], rows, rtol=1e-9, atol=1e-12, err_msg=backend)
