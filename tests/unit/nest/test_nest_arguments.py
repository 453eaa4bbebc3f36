"""Arguments of `compile` and of its functions, in the words that NumPy and Torch have for them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import recurra as rc
from recurra.errors import RecurraError, ShapeError

SIZES = {"m": 4, "k": 5, "n": 6}


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "f32"),
        (np.float32, "f32"),
        (torch.float32, "f32"),
        (np.dtype("f8"), "f64"),
        (float, "f64"),
        (torch.float64, "f64"),
        (ml_dtypes.bfloat16, "bf16"),
        (torch.bfloat16, "bf16"),
    ],
)
def test_types_by_other_names(dtype: Any, name: str) -> None:
    found = rc.nest.compile("mk,kn->mn", sizes=SIZES, dtype=dtype)
    assert found.problem == rc.nest.compile("mk,kn->mn", sizes=SIZES, dtype=name).problem


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.int8, "int8"), ("f16", "f16"), (None, "None"), (3, "3")]
)
def test_types_that_there_are_not(dtype: Any, name: str) -> None:
    with pytest.raises(RecurraError) as refused:
        rc.nest.compile("mk,kn->mn", sizes=SIZES, dtype=dtype)
    assert refused.value.what == f"A has type {name}, which is not supported"


@pytest.mark.parametrize("words", [5, None, ["mk", "kn->mn"]])
def test_words_that_are_no_text(words: Any) -> None:
    with pytest.raises(ShapeError) as refused:
        rc.nest.compile(words, sizes=SIZES)
    assert refused.value.what == f"{words!r} is not an einsum"


def test_an_argument_that_there_is_not() -> None:
    multiply: Any = rc.nest.compile("mk,kn->mn", sizes=SIZES)
    with pytest.raises(TypeError, match=r"^Contraction\(\) got an unexpected keyword argument 'a'"):
        multiply(a=np.zeros((4, 5), np.float32))
