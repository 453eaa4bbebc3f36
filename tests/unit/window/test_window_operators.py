"""Every operator of PyTorch's own tests, its arguments promised, twice, then with other data: it
gives what it gives eagerly, to the last bit."""

from __future__ import annotations

import random
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._pytree as trees
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from recurra.window.torch.concurrent import concurrent

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.usefixtures("pytorch_in_windows"),
    pytest.mark.filterwarnings("ignore"),
]
MOST = 3  # samples of an operator
UNWRITTEN = "empty empty_like empty_permuted empty_strided new_empty new_empty_strided"
UNLIKE = (*UNWRITTEN.split(), "as_strided_scatter", "linalg.lstsq")  # nor twice the same in eager
PARTS = 6
Sample = tuple[Any, tuple[Any, ...], dict[str, Any]]


def operators() -> list[Any]:
    """PyTorch's descriptions of its operators, which import a package that they do not use."""
    stub: Any = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal import common_utils

    # They look for a test through all of the stack, and write all of it down for every kind of GPU.
    common_utils.extract_test_fn = lambda: None
    common_utils.set_rng_seed = seeded
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if comparable(op)]


def seeded(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def comparable(operator: Any) -> bool:
    """Not what only GPUs have, nor views of more memory than a copy of them has."""
    name, variant = operator.name, operator.variant_test_name
    return name not in UNLIKE and not name.startswith("jiterator") and variant != "partial_views"


def plain(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_quantized


def promised(sample: Sample) -> Sample:
    """The same values, as results of operators."""
    return trees.tree_map(lambda t: t.clone() if plain(t) else t, sample)


def other(sample: Sample) -> Sample:
    """Other values of the same shapes, legal where these were."""

    def turned(t: Any) -> Any:
        return t.roll(1) if plain(t) and t.dim() and t.numel() else t

    return trees.tree_map(turned, sample)


def bits(found: Any) -> list[tuple[object, ...]]:
    kept: list[tuple[object, ...]] = []
    for t in trees.tree_leaves(found):
        if plain(t):
            array = t.to(torch.complex64 if t.dtype == torch.complex32 else t.dtype)
            array = array.float() if t.dtype == torch.bfloat16 else array
            kept.append((t.dtype, t.stride(), array.resolve_conj().resolve_neg().numpy().copy()))
    return kept


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> bool:
    return len(found) == len(expected) and all(
        a[:2] == b[:2] and np.array_equal(a[2], b[2], equal_nan=a[2].dtype.kind in "fc")
        for a, b in zip(found, expected, strict=True)
    )


def samples(operator: Any) -> list[Sample]:
    wanted = (torch.float32, torch.int64, torch.bool)
    dtype = next((d for d in wanted if d in operator.dtypes), None)
    if dtype is None:
        return []
    found = [s for _, s in zip(range(MOST), operator.sample_inputs("cpu", dtype), strict=False)]
    return [(s.input, s.args, s.kwargs) for s in found]


def equal(operator: Any, sample: Sample) -> bool:
    def call(given: Sample) -> Any:
        torch.default_generator.manual_seed(1)
        return operator.op(given[0], *given[1], **given[2])

    expected = bits(call(promised(sample)))
    with concurrent(2, policy="always"):
        for _ in range(2):
            found = call(promised(sample))
    return same(bits(found), expected) and equal_anew(lambda: call(other(promised(sample))))


def equal_anew(run: Callable[[], Any]) -> bool:
    """With other data, which need not be legal everywhere."""
    try:
        expected = bits(run())
    except (RuntimeError, IndexError, ValueError):
        return True
    with concurrent(2, check=True):
        found = run()
    return same(bits(found), expected)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator_that_pytorch_describes(part: int) -> None:
    checked, unlike = 0, list[str]()
    for operator in operators()[part::PARTS]:
        for sample in samples(operator):
            checked += 1
            if not equal(operator, sample):
                unlike.append(operator.name)
    assert not unlike
    assert checked > 150


def test_operators_that_look_at_data_between_their_parts() -> None:
    lengths = torch.tensor([5, 3, 2])
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    recurrent = torch.nn.LSTM(4, 6)

    def run() -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for k in (0, 1, 2):  # other lengths, and so other shapes
            packed = pack_padded_sequence(x * 1.0, (lengths - k).clamp(min=1) * 1)
            found += pad_packed_sequence(recurrent(packed)[0])
            found += torch.tensor_split(x, (lengths - 1).sort()[0] // (k + 1))
            log_probs = (x + k).log_softmax(2)
            targets = torch.tensor([1, 2, 3, 1, 2, 1]) * 1
            found.append(
                torch.nn.functional.ctc_loss(
                    log_probs, targets, lengths * 0 + 5, torch.tensor([3, 2, 1]) * 1
                )
            )
        found.append(torch.nn.functional.max_pool1d((x * 1.0).relu() + 1, 2))
        return found

    expected = run()
    with concurrent(2, policy="always"):
        for _ in range(3):
            found = run()
    assert same(bits(found), bits(expected))
