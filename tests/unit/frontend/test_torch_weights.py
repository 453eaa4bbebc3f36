"""Weights of torch: `net.load(module.state_dict(), layout="torch")`, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from recurra import nn
from recurra.errors import NoSuchName

Pair = tuple[Callable[[], Any], Callable[[], nn.Module]]

POINTWISE: dict[str, Pair] = {
    "Linear": (lambda: torch.nn.Linear(3, 3), lambda: nn.Linear(3, 3, domain=())),
    "Sequential": (
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Linear(3, 5, ()), nn.Tanh(), nn.Linear(5, 2, (), label="2")),
    ),
    "MLP": (
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3)),
        lambda: nn.MLP([3, 3, 3], domain=()),
    ),
    "LayerNorm": (lambda: torch.nn.LayerNorm(3), lambda: nn.LayerNorm(3, domain=())),
}
RECURRENT: dict[str, Pair] = {
    "GRU": (lambda: torch.nn.GRU(3, 3), lambda: nn.GRU(3, 3, domain=())),
    "LSTM": (lambda: torch.nn.LSTM(3, 4), lambda: nn.LSTM(3, 4, domain=())),
    "RNN": (lambda: torch.nn.RNN(3, 3), lambda: nn.RNN(3, 3, domain=())),
}


@pytest.mark.parametrize("name", POINTWISE | RECURRENT)
def test_a_module_of_torch_and_ours_give_the_same(name: str) -> None:
    make, build = (POINTWISE | RECURRENT)[name]
    torch.manual_seed(0)
    module = make()
    rows = np.random.default_rng(0).standard_normal((4, 3)).astype("f4")
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        net = build()
        net.load(module.state_dict(), layout="torch")
        rc.output(y=net(rc.input(rc.f32[3], (t,), name="x")))
    found = ctx.run({T: 4}, inputs={"x": rows}, backend="numpy")["y"]
    want = module(torch.tensor(rows))
    want = want[0] if isinstance(want, tuple) else want
    np.testing.assert_allclose(found, want.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_attention_of_torch() -> None:
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(4, 2)
    rows = torch.randn(5, 4)
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        net = nn.MultiheadAttention(4, 2, domain=())
        net.load(module.state_dict(), layout="torch")
        rc.output(y=net(rc.input(rc.f32[4], (t,), name="x")))
    found = ctx.run({T: 5}, inputs={"x": rows.numpy()}, backend="numpy")["y"]
    want = module(rows, rows, rows, attn_mask=causal)[0].detach().numpy()
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def refused(build: Callable[[], nn.Module], arrays: Any, **options: Any) -> rc.RecurraError:
    with rc.Context(dims="t"), pytest.raises(rc.RecurraError) as error:
        build().load(arrays, **options)
    return error.value


def test_matrices_of_torch_are_not_taken_as_they_lie() -> None:
    """A square one was: its outputs were wrong, and nobody said so."""
    square = refused(lambda: nn.Linear(3, 3, domain=()), torch.nn.Linear(3, 3).state_dict())
    assert square.what == "weight is given as a tensor of torch"
    assert 'layout="torch"' in square.hint
    arrays = {k: v.numpy() for k, v in torch.nn.Linear(3, 8).state_dict().items()}
    wide = refused(lambda: nn.Linear(3, 8, domain=()), arrays)
    assert wide.what == "weight cannot start at an array [8, 3]"
    assert "it is f32[3,8], [in, out]" in wide.facts
    assert 'layout="torch"' in wide.hint
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    named = refused(lambda: nn.Sequential(nn.Linear(3, 2, domain=())), net.state_dict())
    assert named.hint == 'these names are those of torch: net.load(arrays, layout="torch")'
    other = refused(lambda: nn.Linear(3, 2, domain=()), {}, layout="jax")
    assert other.what == "there is no layout 'jax'"


def test_what_a_checkpoint_holds_beside_is_left_out() -> None:
    ctx = rc.Context(dims="i")
    with ctx as (_, I):
        net = nn.Linear(2, 1, domain=())
        weight, bias = np.ones((2, 1), "f4"), np.zeros(1, "f4")
        net.load({"weight": weight, "bias": bias, "state/W_next": weight})
        rc.output(w=net.weight)
    assert ctx.run({I: 1}, backend="numpy")["w"].tolist() == [[1.0], [1.0]]


def test_words_of_torch_modules_say_what_to_write() -> None:
    with rc.Context(dims="i"):
        net: Any = nn.Linear(2, 1, domain=())
        for word, line in (("state_dict", "rc.output(**"), ("parameters", "net.params")):
            with pytest.raises(NoSuchName, match=f"the module Linear has no '{word}'") as error:
                getattr(net, word)
            assert line in error.value.hint
        assert not hasattr(net, "log_std")
