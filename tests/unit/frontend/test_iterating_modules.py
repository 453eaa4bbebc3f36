"""A module where several tensors belong: refused, not counted through without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax
import pytest

import recurra as rc
from recurra import nn


@pytest.mark.parametrize(
    "use",
    [
        lambda net: rc.optim.SGD(net, lr=0.1),
        lambda net: rc.optim.Adam(net),
        lambda net: rc.optim.clip_grad_norm(net, 1.0),
        lambda net: rc.optim.clip_grad_value(net, 1.0),
        lambda net: rc.optim.from_optax(optax.sgd(0.1), net),
        lambda net: net.weight.sum().backward(wrt=net),
        list,
        lambda net: 3 in net,
    ],
)
def test_it_is_refused_with_the_parameters_to_write(use: Callable[[Any], Any]) -> None:
    with rc.Context(dims="i") as (i, _):
        net = nn.Linear(3, 8, domain=(i,))
        with pytest.raises(rc.RecurraError, match=r"net\.params"):
            use(net)


def test_layers_are_counted_through() -> None:
    with rc.Context(dims="i") as (i, _):
        net = nn.Sequential(nn.Linear(3, 8, domain=(i,)), nn.Tanh())
        assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh]
        assert len(net) == 2
        with pytest.raises(rc.RecurraError, match="an optimizer is given a Sequential"):
            rc.optim.SGD(net, lr=0.1)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda x, t: max(t - 3, 0), "rc.max(a, b)"),
        (lambda x, t: rc.normal(3), "domain=(), shape=(3,)"),
        (lambda x, t: rc.where(x.cast("i32"), 1.0, 0.0), "rc.where(x != 0, x, 0.0)"),
        (lambda x, t: x.mean(t), "x[b, 0:T].sum(axis=0)"),
        (lambda x, t: nn.MultiheadAttention(3, 1, domain=())(x, x, x), "write net(x)"),
        (lambda x, t: rc.optim.clip_grad_norm_, "rc.optim.clip_grad_norm([p], 1.0)"),
        (lambda x, t: x.broadcast_to((2, 2)), "an axis of size 1"),
    ],
)
def test_what_newcomers_write_first(use: Callable[[Any, Any], Any], told: str) -> None:
    with rc.Context(dims="b t") as ((b, _), (t, _)):
        x = rc.normal((b, t), (3,))
        with pytest.raises(rc.RecurraError) as error:
            use(x, t)
        assert told in error.value.hint
