"""What users write first, in words of NumPy and PyTorch, works or is told by the line to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS
from recurra.errors import RecurraError

X = np.arange(12, dtype="f4").reshape(4, 3)


@pytest.mark.parametrize(
    ("write", "want"),
    [
        (lambda x: x.flip([0]), X[::-1]),
        (lambda x: x.flip(dims=[0, 1]), X[::-1, ::-1]),
        (lambda x: x.sum(dim=[0, 1]), X.sum()),
        (lambda x: x.max(axis=[-1]), X.max(-1)),
        (lambda x: x.topk(2).values, X[:, :0:-1]),
        (lambda x: rc.minimum(x, 5.0, 9.0 - x), np.minimum(X, 5.0).clip(max=9.0 - X)),
        (lambda x: rc.maximum(x, 5.0, 9.0 - x), np.maximum(X, 5.0).clip(min=9.0 - X)),
        (lambda x: x.topk(2, axis=0).indices, np.array([[3] * 3, [2] * 3])),
    ],
    ids=["flip", "flip of two", "sum of two", "max", "values", "least", "greatest", "indices"],
)
def test_they_give_what_they_give_there(write: Callable[[Any], Any], want: Any) -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        rc.output(y=write(rc.input(rc.f32[4, 3], (t,), name="x")))
    found = ctx.run({T: 2}, inputs={"x": np.stack([X, X])}, backend="numpy")["y"]
    np.testing.assert_array_equal(found[1], want)


def told(write: Callable[..., Any]) -> str:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.input(rc.f32[4, 3], (t,), name="x")
        with pytest.raises(RecurraError) as error:
            write(x, t, T, ctx)
        rc.output(x=x)
    return str(error.value)


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (
            lambda x, t, T, ctx: x.scatter_add(0, 1, 2),
            'x.scatter(axis=0, index=i, value=y, reduce="add")',
        ),
        (
            lambda x, t, T, ctx: x.scatter(0, rc.constant([[[0]]]), 1.0),
            "write x.scatter(axis, i, v) of an i",
        ),
        (lambda x, t, T, ctx: ctx.run({T: 2}, {"x": X}), 'ctx.run({T: 10}, inputs={"x": x})'),
        (
            lambda x, t, T, ctx: ctx.compile({T: 2}, "numpy"),
            'ctx.compile({T: 10}, backend="numpy")',
        ),
        (lambda x, t, T, ctx: rc.bernoulli(2.0, (t,)), "rc.bernoulli(x.sigmoid())"),
        (lambda x, t, T, ctx: x * 1e300, 'rc.constant(x, "f64") holds more'),
        (lambda x, t, T, ctx: rc.maximum(x, [x, 3.0]), "write rc.stack([x, 3.0])"),
    ],
    ids=["scatter_add", "scatter", "run", "compile", "bernoulli", "too large", "a list"],
)
def test_they_are_told_the_line_to_write(write: Callable[..., Any], line: str) -> None:
    assert line in told(write)


def test_parameters_of_whole_numbers_have_no_gradient() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, _):
        w = rc.nn.Parameter(np.ones(3, "int32"), domain=(t,), name="w")
        with pytest.raises(RecurraError, match="w is i32\\[3\\], and only floats have gradients"):
            w.sum().backward()


def helper(t: Any) -> Any:
    mine = rc.like(rc.f32, (t,))
    mine[0] = 1.0
    mine[t] = mine[t - 2]
    return mine


def test_what_a_helper_declares_has_the_name_of_its_variable() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        rc.output(y=helper(t))
    with pytest.raises(RecurraError, match="mine is not defined at every point"):
        ctx.compile({T: 4}, backend="numpy")


def test_branches_are_told_by_the_name_of_their_variable() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, _):
        mine = rc.like(rc.f32, (t,))
        mine[0] = 1.0
        with pytest.raises(RecurraError, match="this branch of mine never holds"):
            mine[0] = 2.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_scatter_takes_one_place_or_a_row_of_them(backend: str) -> None:
    x, row = np.arange(12, dtype="f4").reshape(3, 4), np.ones((3, 4), "f4") * [[1], [2], [3]]
    with (ctx := rc.Context(num_dims=1)) as ((t, T),):
        X, k, new = rc.input(rc.f32[3, 4]), rc.input(rc.i32, (t,)), rc.input(rc.f32[4], (t,))
        places, rows = rc.input(rc.i32[2]), rc.input(rc.f32[2, 4])
        rc.output(one_row=X.scatter(0, k, new), one_column=X.scatter(1, k, -1.0))
        rc.output(one_number=new.scatter(0, k, 7.0), added=X.scatter(0, places, rows, reduce="add"))
    given = {"X": x, "k": np.int32([2, 0, 1]), "new": row.astype("f4")}
    given |= {"places": np.int32([1, 1]), "rows": np.ones((2, 4), "f4")}
    found = ctx.compile({T: 3}, backend=backend).run(inputs=given)
    for step, place in enumerate((2, 0, 1)):
        one_row, one_column, one_number = x.copy(), x.copy(), row[step].copy()
        one_row[place], one_column[:, place], one_number[place] = row[step], -1.0, 7.0
        np.testing.assert_array_equal(found["one_row"][step], one_row)
        np.testing.assert_array_equal(found["one_column"][step], one_column)
        np.testing.assert_array_equal(found["one_number"][step], one_number)
    np.testing.assert_array_equal(found["added"], x + np.array([[0], [2], [0]]))
