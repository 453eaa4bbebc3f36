"""What follows a step: clipped and masked weights, averages, target networks, beside torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import optax
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS
from recurra.errors import RecurraError

STEPS, TAU, EVERY = 7, 0.2, 3
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(6, 3)).astype("f4"), RNG.normal(size=(6, 2)).astype("f4")
START = {"weight": RNG.normal(size=(3, 2)).astype("f4"), "bias": np.array([0.5, -1.0], "f4")}
MASK = np.array([[1, 0], [1, 1], [0, 1]], "f4")

OPTIMIZERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sgd": (lambda ps: rc.optim.SGD(ps, lr=0.05), lambda ps: torch.optim.SGD(ps, lr=0.05)),
    "adam": (lambda ps: rc.optim.Adam(ps, lr=0.1), lambda ps: torch.optim.Adam(ps, lr=0.1)),
    "optax": (
        lambda ps: rc.optim.from_optax(optax.sgd(0.05), ps),
        lambda ps: torch.optim.SGD(ps, lr=0.05),
    ),
}


def limited(p: Any, new: Any) -> Any:
    new = new.clip(-0.8, 0.8)
    return new * rc.constant(MASK) if new.shape == MASK.shape else new


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_targets_averages_and_limits_are_those_of_torch(name: str, backend: str) -> None:
    ours, theirs = OPTIMIZERS[name]
    ctx = rc.Context(dims="i")
    with ctx as (i, I):
        net = rc.nn.Linear(3, 2, domain=(i,))
        net.load(START)
        target, mean = copy.deepcopy(net), net.copy()
        goal = (rc.constant(Y) + target(rc.constant(X)) * 0.5).detach()
        (net(rc.constant(X)) - goal).square().mean().backward()
        ours(net.params).step(after=limited)
        for q, m, p in zip(target.params, mean.params, net.params, strict=True):
            q.update(rc.where((i + 1) % EVERY == 0, p.next, q))
            m.update((1 - TAU) * m + TAU * p.next)
        rc.output(weight=net.weight, bias=net.bias, target=target.weight, mean=mean.weight)
    found = ctx.run({I: STEPS}, backend=backend)
    for key, want in by_torch(theirs).items():
        np.testing.assert_allclose(found[key], want, rtol=1e-4, atol=1e-5, err_msg=key)


def by_torch(optimizer: Callable[..., Any]) -> dict[str, np.ndarray]:
    net = torch.nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor(START["weight"].T))
        net.bias.copy_(torch.tensor(START["bias"]))
    target, mean = copy.deepcopy(net), copy.deepcopy(net)
    step, rows = optimizer(net.parameters()), list[dict[str, np.ndarray]]()
    for k in range(STEPS):
        rows.append({
            "weight": net.weight.detach().numpy().T.copy(),
            "bias": net.bias.detach().numpy().copy(),
            "target": target.weight.detach().numpy().T.copy(),
            "mean": mean.weight.detach().numpy().T.copy(),
        })  # fmt: skip
        step.zero_grad()
        goal = torch.tensor(Y) + target(torch.tensor(X)).detach() * 0.5
        (net(torch.tensor(X)) - goal).square().mean().backward()
        step.step()
        with torch.no_grad():
            net.weight.clamp_(-0.8, 0.8).mul_(torch.tensor(MASK.T))
            net.bias.clamp_(-0.8, 0.8)
            for m, p in zip(mean.parameters(), net.parameters(), strict=True):
                m.lerp_(p, TAU)
        if (k + 1) % EVERY == 0:
            target.load_state_dict(net.state_dict())
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def test_a_copy_steps_along_the_dims_of_its_original() -> None:
    ctx = rc.Context(dims="i e")
    with ctx as ((i, I), (e, E)):
        net = rc.nn.Linear(1, 1, domain=((i, e),), bias=False)
        net.weight.restart([[1.0]])
        mean = net.copy()
        net.weight.update(net.weight + 1.0)
        mean.weight.update(mean.weight * 0.5 + net.weight.next * 0.5)
        rc.output(net=net.weight, mean=mean.weight)
    found = ctx.run({I: 2, E: 3}, backend="numpy")
    want = [1.0]
    for k in range(5):
        want.append(want[-1] * 0.5 + (k + 2) * 0.5)
    np.testing.assert_array_equal(found["net"].ravel(), [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(found["mean"].ravel(), want)


def test_what_is_not_there_yet_is_refused() -> None:
    with rc.Context(dims="i") as (i, _):
        w = rc.nn.Parameter(rc.constant([1.0]), domain=(i,), name="w")
        with pytest.raises(RecurraError, match="w has no next value yet"):
            w.next.sum()
        w.square().sum().backward()
        with pytest.raises(RecurraError, match="gives no value for w"):
            rc.optim.SGD([w]).step(after=lambda p, new: None)
        rc.optim.SGD([w]).step()
        with pytest.raises(RecurraError, match="w is updated twice"):
            w.update(w.next.clip(0, 1))
