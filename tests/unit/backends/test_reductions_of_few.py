"""Reductions of few elements under XLA: loops of its own, with the library's answers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from recurra.backends.jax.array_namespace import JaxNamespace
from recurra.cost.thresholds import MAX_LOOP_AXIS, MAX_LOOP_ROW

SHAPES = [(3, 2048), (2048, 3), (MAX_LOOP_AXIS, 512), (512, MAX_LOOP_ROW), (64, 5, 64)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("name", ["sum", "max"])
def test_answers_are_those_of_numpy(name: str, keepdims: bool, shape: tuple[int, ...]) -> None:
    axis = min(range(len(shape)), key=lambda k: shape[k])
    x = np.random.default_rng(0).standard_normal(shape, "f4")
    x.flat[:4] = np.nan, np.inf, -np.inf, -0.0
    options = {"axis": axis - len(shape), "keepdims": keepdims}
    found = jax.jit(lambda x: getattr(JaxNamespace(), name)(x, **options))(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, getattr(np, name)(x, **options), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["sum", "max"])
def test_no_library_is_called(name: str, shape: tuple[int, ...]) -> None:
    """XLA finds what it gives to YNNPACK by how a reduction is written: a new XLA may find more."""
    axis = min(range(len(shape)), key=lambda k: shape[k])
    x = np.zeros(shape, "f4")
    for mine, found in ((JaxNamespace(), False), (jax.numpy, True)):
        made = jax.jit(lambda x, mine=mine: getattr(mine, name)(x * x, axis=(axis,)))
        text = made.lower(x).compile().as_text()
        assert text
        assert ("ynn" in text) is found


def test_rows_of_nothing() -> None:
    x = np.zeros((4, 0), "f4")
    assert JaxNamespace().sum(x, axis=(1,)).tolist() == [0.0] * 4


def test_other_arguments_are_numpys() -> None:
    x, xp = np.arange(12, dtype="f4").reshape(4, 3), JaxNamespace()
    assert xp.sum(x).item() == x.sum()
    assert xp.sum(x, 0).tolist() == x.sum(0).tolist()
    assert xp.sum(x, 1, dtype="int32").dtype == np.int32
    assert xp.sum(x, 1, where=x > 4).tolist() == x.sum(1, where=x > 4).tolist()
    assert xp.max(x, 1, initial=7.0).tolist() == x.max(1, initial=7.0).tolist()
