"""Compiled programs are copied and pickled, before and after they have run."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import recurra as rc

BACKENDS = ["numpy", "jax", "torch"]
OPTIONS: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "offloaded": {"offload": "disk"},
    "looking for NaN": {"check": "nan"},
    "in a budget": {"memory": "1MiB"},
}


def pickled(program: Any) -> Any:
    return pickle.loads(pickle.dumps(program))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("again", [pickled, copy.deepcopy])
def test_another_that_gives_the_same(
    backend: str, options: Mapping[str, Any], again: Callable[[Any], Any]
) -> None:
    """One that had run raised AttributeError, on JAX every one TypeError."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.like(rc.f32[3], (b, t))
        x[b, 0] = 1.0
        x[b, t] = x[b, t - 1] * 0.9 + rc.constant([0.0, 1.0, 2.0])
        rc.output(x=x)
    program = ctx.compile({B: 2, T: 5}, backend=backend, **options)
    before = again(program)
    want = program.run()["x"]
    np.testing.assert_array_equal(before.run()["x"], want)
    np.testing.assert_array_equal(again(program).run()["x"], want)


def test_functions_of_the_host_stay_where_they_are() -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.like(rc.f32, (t,))
        x[0] = 1.0
        x[t] = rc.call(twice, rc.f32, x[t - 1])
        rc.output(x=x)
    program = ctx.compile({T: 3}, backend="numpy")
    np.testing.assert_array_equal(copy.deepcopy(program).run()["x"], [1, 2, 4])
    with pytest.raises(rc.RecurraError, match="nothing by the name 'twice'") as told:
        pickled(program).run()
    assert "pickle, which name functions and do not hold them" in str(told.value)


def twice(x: np.ndarray) -> np.ndarray:
    return x * np.float32(2.0)
