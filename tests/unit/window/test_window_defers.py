"""What programs do all the time is deferred, with other numbers, indices and types each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from random_torch import bits, expect_bits_of_eager
from recurra.window import WindowError
from recurra.window.torch.concurrent import concurrent

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_in_windows")]
CALLS = 30
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(4, 32, 64, generator=GENERATOR)
W = torch.randn(64, 64, generator=GENERATOR)
AT = torch.randint(0, 32, (8,), generator=GENERATOR)
PAST = torch.randn(2, 64, 64, generator=GENERATOR)
LINEAR = torch.nn.Linear(64, 64, bias=False)
CELL = torch.nn.GRUCell(64, 64)
HEADS = torch.randn(2, 4, 32, 16, generator=GENERATOR)


def in_autocast(k: int) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (torch.tanh(X) * 2 + k) @ W


PROGRAMS: dict[str, tuple[int, Callable[[int], torch.Tensor]]] = {  # operators of a call
    "matmul in 3 dims": (1, lambda k: X @ W),
    "linear without bias": (1, lambda k: LINEAR(X)),
    "integer indices": (1, lambda k: X[:, (AT + k) % 32]),
    "indices written": (2, lambda k: torch.index_put(W * 1, (AT,), W[0])),
    "alpha": (1, lambda k: torch.add(W, W, alpha=1.0 / (k + 1))),
    "clamp": (1, lambda k: W.clamp(max=k + 0.5)),
    "clamp in place": (2, lambda k: (W * 1).clamp_(max=k + 0.5)),
    "pow": (2, lambda k: W.abs().pow(1.0 + k / 100)),
    "autocast": (5, in_autocast),
    "attention": (1, lambda k: scaled_dot_product_attention(HEADS, HEADS, HEADS, is_causal=k > 9)),
    "a cell": (12, lambda k: CELL(W, W)),
    "numbers made tensors": (1, lambda k: W * torch.tensor(k + 0.5)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_deferred(name: str) -> None:
    operators, call = PROGRAMS[name]

    def program() -> list[torch.Tensor]:
        return [call(k) for k in range(CALLS)]

    expected = program()
    with concurrent(2, policy="always"):
        call(0)
    with concurrent(2, policy="always") as block:
        found = program()
    assert bits([x.float() for x in found]) == bits([x.float() for x in expected])
    assert block.counts["deferred"] >= operators * (CALLS - 1)


def test_what_waits_does_not_wait_for_others() -> None:
    """No operator of these programs waits for everything that is in flight."""
    for name in ("attention", "a cell", "numbers made tensors"):
        call = PROGRAMS[name][1]
        with concurrent(2, policy="always"):
            call(0), call(20)
        with concurrent(2, policy="always", explain=True) as block:
            for k in range(CALLS):
                call(k)
        assert not [fate for fate in block.fates if fate.what == "caller"]


def growing(k: int) -> list[torch.Tensor]:
    """A step of decoding: everything has another length than the step before."""
    keys, values = PAST[:, : k + 1], PAST[:, : k + 1] * 0.5
    scores = torch.baddbmm(PAST[:, k : k + 1, : k + 1], PAST[:, k : k + 1], keys.transpose(1, 2))
    found = torch.softmax(scores, -1) @ values
    parts = [torch.cat([keys, found], 1), keys[:, torch.arange(k, -1, -1)], keys.sum(1)]
    normed = torch.nn.functional.layer_norm(keys, (64,))
    return [found, *parts, normed, torch.where(keys > 0, keys, -0.5), torch.arange(k + 1) * 2.5]


@pytest.mark.parametrize("check", [False, True])
def test_shapes_that_grow_are_deferred(check: bool) -> None:
    """What results are like is asked of PyTorch, once that was right of shapes before."""

    def program() -> list[torch.Tensor]:
        return [x for k in range(40) for x in growing(k)]

    expected = program()
    with concurrent(2, policy="always", check=check) as block:
        found = program()
    assert bits(found) == bits(expected)
    assert [x.stride() for x in found] == [x.stride() for x in expected]
    assert block.counts["learned"] <= 6 * 11  # 11 families
    assert block.counts["deferred"] >= 34 * 11


def test_shapes_that_depend_on_data_are_never_foretold() -> None:
    def program() -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for k in range(1, 20):
            x = PAST[0, :k].round()
            at = torch.arange(k) % 3
            found += [x.nonzero(), torch.unique(x), x[x > 0], torch.bincount(at)]
            found += [torch.repeat_interleave(at), torch.masked_select(x, x < 0) * 2]
        return found

    expect_bits_of_eager(program)


def test_numbers_of_other_types_give_other_types() -> None:
    whole = torch.arange(6)

    def program() -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for number in (2, 2.5, True, 3, 0.5):
            found += [torch.pow(whole, number), whole * number, torch.clamp(whole, max=number)]
            found.append(torch.arange(0, 6 * number, 1, out=torch.empty(0)))
        return found

    expect_bits_of_eager(program)


def test_masks_and_indices_are_told_apart() -> None:
    def program() -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for k in range(12):
            w = torch.roll(W, k)
            mask, at = w[:, 0] > 0, (AT + k) % 32
            found += [w[mask] * 2, w[at] * 2]
            w[mask] = 1.0
            w[at] += 1.0
            found.append(w * 1)
        return found

    expect_bits_of_eager(program)


def test_it_is_explained() -> None:
    """Of every operator: what became of its calls, why, and what that cost."""
    seen = torch.zeros(4)
    numbers = seen.numpy()
    with concurrent(2, policy="always"):
        (W @ W).sum()
    with concurrent(2, policy="always", explain=True) as block:
        for _ in range(5):
            y = W @ W
            seen.add_(1)
            torch.bernoulli(W.abs().clamp(max=1))
            y.sum().item()
    assert numbers[0] == 5
    told = {(f.operator, f.what): f for f in block.fates}
    assert told["aten::mm", "deferred"].calls == 5
    assert told["aten::bernoulli", "caller"].why == "it draws"
    assert told["aten::add_.Tensor", "caller"].why == "somebody else sees memory of its arguments"
    assert told["aten::_local_scalar_dense", "caller"].us > 0
    assert block.fates == sorted(block.fates, key=lambda f: -f.us)
    assert "somebody else sees memory" in str(block)
    with concurrent(2, policy="always") as block:
        W @ W
    assert not block.fates
    assert not block.spans
    with pytest.raises(WindowError, match=r"explain=True"):
        block.save_timeline("block.html")


def test_its_timeline_has_a_lane_for_each_thread(tmp_path: Path) -> None:
    """Every operator once, where it ran, and in no thread two at a time."""
    many = torch.randn(300, 300, generator=GENERATOR)

    def program() -> None:
        for _ in range(20):
            torch.stack([(many @ many).relu() for _ in range(4)]).sum().item()

    with concurrent(2, policy="always"):
        program()
    with concurrent(2, policy="always", explain=True) as block:
        program()
    ran = [s.name for s in block.spans]
    assert ran.count("aten::mm") == ran.count("aten::relu") == 80
    assert ran.count("aten::stack") == ran.count("aten::_local_scalar_dense") == 20
    assert {s.thread for s in block.spans} == {0, 1}
    assert {s.thread for s in block.spans if s.name == "aten::_local_scalar_dense"} == {0}
    for thread in (0, 1):
        own = sorted((s.start, s.stop) for s in block.spans if s.thread == thread)
        assert all(a[0] <= a[1] <= b[0] for a, b in pairwise(own))
    for name in ("block.html", "block.json"):
        block.save_timeline(tmp_path / name)
    page = (tmp_path / "block.html").read_text()
    assert "<span>thread 0</span><span>thread 1</span>" in page
    assert "side by side" in page
    events = json.loads((tmp_path / "block.json").read_text())["traceEvents"]
    assert [(e["name"], e["tid"]) for e in events] == [(s.name, s.thread) for s in block.spans]
    with pytest.raises(WindowError, match=r"neither \.html nor \.json"):
        block.save_timeline(tmp_path / "block.png")
