"""Results that are values: no store that they would be copied to, and memory of their own."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from acting_programs import World
from acting_programs import program as acting
from recurra.backends.numpy.region import written


def smoothed(backend: str) -> rc.Executable:
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x = rc.input(rc.f32, (b, t))
        h = rc.like(rc.f32, (b, t))
        h[b, steps - 1] = x[b, steps - 1]
        h[b, t] = 0.9 * h[b, t + 1] + x
        rc.output(h=h)
    return ctx.compile({rows: 3, steps: 7}, backend=backend)


def related(backend: str) -> rc.Executable:
    """Outputs that are the same numbers: of each other, and of an input."""
    ctx = rc.Context(num_dims=0)
    with ctx:
        x = rc.input(rc.f32[2, 3])
        y = x * 2.0
        rc.output(x=x, flat=x.reshape(6), turned=x.transpose(1, 0), y=y, tall=y.reshape(6))
        rc.output(sum=y.sum(), five=rc.constant(5.0) * rc.ones((2,)), wide=y.reshape(1, 6))
    return ctx.compile({}, backend=backend)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_results_that_are_one_value_have_memory_of_their_own(backend: str) -> None:
    program = related(backend)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second = (program.run(inputs={"x": x}) for _ in range(2))
    want = {"x": x, "flat": x.reshape(6), "turned": x.T, "sum": 30.0, "five": [5.0, 5.0]}
    want |= {"y": x * 2, "tall": x.reshape(6) * 2}
    for name, value in want.items():
        np.testing.assert_array_equal(first[name], value)
        assert isinstance(first[name], np.ndarray)
    arrays = [x, *first.values(), *second.values()]
    assert not any(np.shares_memory(a, b) for a, b in combinations(arrays, 2))


def test_native_tensors_have_memory_of_their_own() -> None:
    program = related("torch")
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    made: list[Any] = [x]
    for _ in range(2):
        made += program.run(inputs={"x": x}, native=True).values()
    assert len({t.untyped_storage().data_ptr() for t in made}) == len(made)


def test_an_output_that_is_made_whole_has_no_store() -> None:
    program = smoothed("numpy")
    assert program.runner.single is not None
    assert program.runner.single.program.values == ()
    single = related("numpy").runner.single
    assert single is not None
    assert "y" in single.program.values
    (region,) = single.program.regions
    assert "y" in region.gives
    assert "y" not in region.stores


def test_a_store_that_is_read_is_given_back_itself() -> None:
    program = acting(World(), "nested").compile({"B": 3, "I": 2, "T": 9}, backend="numpy")
    plan = program.compiled.plan
    with np.errstate(all="ignore"):
        sources = [written(plan, r)[0] for r in program.compiled.program.regions]
    assert any("o_store[" in text and "return" in text for text in sources)
    assert not any("_store.copy()" in text.rpartition("return")[2] for text in sources)
