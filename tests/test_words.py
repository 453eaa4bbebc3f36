"""Words of other libraries: each is refused with a line that works when it is pasted."""

from __future__ import annotations

import copy
import math
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import recurra as rc
from recurra.errors import RecurraError
from recurra.lang.words import WORDS

PACKAGES = {  # the words that are looked for in the package, not in a tensor
    *("array", "empty", "eye", "float16", "float32", "float64", "int32", "int64", "linspace"),
    *("no_grad", "ones_like", "pad", "softplus", "tensor", "zeros_like"),
}


@pytest.mark.parametrize("word", WORDS)
def test_the_line_works(word: str) -> None:
    """What it makes is put out, if it is a tensor, and the program runs."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.normal((t,), (2, 3))
        rc.output(first=x)
        with pytest.raises(RecurraError, match=f"has no '{word}'") as refused:
            getattr(rc if word in PACKAGES else x, word)
        line = str(refused.value).rpartition("  hint: write ")[2]
        assert line == WORDS[word]
        made: Any = eval(line, {"rc": rc, "np": np, "math": math, "ctx": ctx, "T": T, "x": x})
        if hasattr(made, "backward"):
            rc.output(made=made)
    assert "first" in ctx.compile({T: 3}, backend="numpy").run()


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("sub", "x - y"),
        ("matmul", "x @ y"),
        ("eq", "x == y"),
        ("clamp", "x.clip(lo, hi)"),
        ("concatenate", "rc.concat([x, y], axis=0)"),
        ("randn", "rc.normal(domain, shape)"),
        ("exp_", "x = x + 1.0"),
    ],
)
def test_an_operator_of_another_name(word: str, line: str) -> None:
    with rc.Context(dims="t") as (t, _):
        x = rc.normal((t,), (2, 3))
        with pytest.raises(AttributeError) as refused:
            getattr(x, word)
    assert str(refused.value).endswith(f"write {line}")


def test_what_python_asks_for_is_as_ever() -> None:
    with rc.Context(dims="t") as (t, _):
        x = rc.normal((t,), (2, 3))
        assert not hasattr(x, "view")
        assert not hasattr(x, "__array_interface__")
        assert getattr(x, "nonsense", None) is None
        assert copy.copy(x).shape == x.shape
    assert not hasattr(rc, "__wrapped__")
    with pytest.raises(ImportError, match="cannot import name 'tensor'"):
        exec("from recurra import tensor")


BITS = np.array([1.0, -2.5, 3.140625, 1e30], np.float32)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (torch.tensor(BITS, dtype=torch.bfloat16), "bf16"),
        (jnp.asarray(BITS, jnp.bfloat16), "bf16"),
        (BITS.astype(ml_dtypes.bfloat16), "bf16"),
        (torch.tensor(BITS, requires_grad=True), "f32"),
        (BITS.tolist(), "f32"),
        (torch.tensor([0.1, 1 / 3], dtype=torch.float64), "f64"),
        (np.array([0.1, 1 / 3]), "f64"),
        (torch.tensor([2**40 + 1, -(2**50)]), "i64"),
        (np.float64(0.1), "f64"),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_constants_of_any_library_keep_their_bits(given: Any, dtype: Any, backend: str) -> None:
    with (ctx := rc.Context(dims="t")) as (_, T):
        x = rc.constant(given, dtype if dtype in ("f64", "i64") else None)
        assert x.dtype == dtype
        rc.output(x=x)
    have = np.asarray(ctx.compile({T: 1}, backend=backend).run()["x"])
    plain = given.detach().double() if isinstance(given, torch.Tensor) else given
    np.testing.assert_array_equal(have.astype(np.float64), np.asarray(plain, np.float64))
