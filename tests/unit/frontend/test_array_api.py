"""With no dim it is an ordinary array library: what the Array API standard names means that.

The suite of the standard, data-apis/array-api-tests, is on no package index, and asks for a
module of eager arrays: the functions that we offer are held against NumPy under its names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, mutually_broadcastable_shapes

import recurra as rc

UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": lambda x: x.abs(),
    "cos": lambda x: x.cos(),
    "exp": lambda x: x.exp(),
    "floor": lambda x: x.floor(),
    "negative": lambda x: -x,
    "positive": lambda x: x + 0.0,
    "sin": lambda x: x.sin(),
    "square": lambda x: x.square(),
    "tanh": lambda x: x.tanh(),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "divide": lambda x, y: x / y,
    "equal": lambda x, y: x == y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "maximum": rc.maximum,
    "minimum": rc.minimum,
    "multiply": lambda x, y: x * y,
    "not_equal": lambda x, y: x != y,
    "remainder": lambda x, y: x % y,
    "subtract": lambda x, y: x - y,
}
OVER: dict[str, Callable[[Any, int], Any]] = {
    "argmax": lambda x, k: x.argmax(axis=k),
    "argsort": lambda x, k: x.argsort(axis=k),
    "cumulative_sum": lambda x, k: x.cumsum(axis=k),
    "flip": lambda x, k: x.flip(axis=k),
    "max": lambda x, k: x.max(axis=k),
    "mean": lambda x, k: x.mean(axis=k),
    "min": lambda x, k: x.min(axis=k),
    "sum": lambda x, k: x.sum(axis=k),
}
NUMBERS = st.floats(-4, 4, width=32, allow_subnormal=False).filter(lambda v: abs(v) > 1e-3)
QUICK = settings(max_examples=15, deadline=None, derandomize=True)


def values(*xs: np.ndarray) -> list[Any]:
    return [rc.constant(x) for x in xs]


def evaluated(f: Callable[..., Any], *xs: np.ndarray) -> Any:
    """f of constants, in a program without dims."""
    ctx = rc.Context(num_dims=0)
    with ctx:
        rc.output(y=f(*values(*xs)))
    return ctx.run({}, backend="numpy")["y"]


def same(found: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    assert (found.dtype == bool) == (wanted.dtype == bool)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def array(shape: Any) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float32, shape, elements=NUMBERS)


@pytest.mark.parametrize("name", UNARY)
@QUICK
@given(x=array(array_shapes(min_dims=0, max_dims=3, max_side=3)))
def test_unary(name: str, x: np.ndarray) -> None:
    same(evaluated(UNARY[name], x), getattr(xp, name)(x))


@pytest.mark.parametrize("name", BINARY)
@QUICK
@given(shapes=mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), data=st.data())
def test_binary_operands_broadcast(name: str, shapes: Any, data: Any) -> None:
    x, y = (data.draw(array(s)) for s in shapes.input_shapes)
    same(evaluated(BINARY[name], x, y), getattr(xp, name)(x, y))


@pytest.mark.parametrize("name", OVER)
@QUICK
@given(x=array(array_shapes(min_dims=1, max_dims=3, max_side=3)), data=st.data())
def test_along_an_axis(name: str, x: np.ndarray, data: Any) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    same(evaluated(lambda v: OVER[name](v, axis), x), getattr(xp, name)(x, axis=axis))


@QUICK
@given(x=array((2, 3)), y=array((3, 2)))
def test_products_and_joins(x: np.ndarray, y: np.ndarray) -> None:
    same(evaluated(lambda a, b: a @ b, x, y), x @ y)
    same(evaluated(lambda a, b: rc.concat([a, b.T]), x, y), xp.concat([x, y.T]))
    same(evaluated(lambda a, b: rc.stack([a, b.T]), x, y), xp.stack([x, y.T]))
    same(evaluated(lambda a, b: rc.where(a > 0, a, b.T), x, y), xp.where(x > 0, x, y.T))
    same(evaluated(lambda a: a.reshape(3, 2), x), xp.reshape(x, (3, 2)))


@pytest.mark.parametrize("number", [-1, 0, 7, 255, 256, 300, 2**40])
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_numbers_that_a_type_cannot_hold_are_compared(number: int, backend: str) -> None:
    """As NumPy 2 does: every u8 is less than 300, and none is -1."""
    x = np.array([0, 7, 255], np.uint8)
    found = [x < number, x <= number, x > number, x >= number, x == number, x != number]
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        u = rc.input(rc.u8, (t,), name="u")
        ways = (u < number, u <= number, u > number, u >= number, u == number, u != number)
        rc.output(**{f"way_{k}": way for k, way in enumerate(ways)})
    made = ctx.run({T: 3}, backend=backend, inputs={"u": x})
    for k, want in enumerate(found):
        np.testing.assert_array_equal(made[f"way_{k}"], want)
