"""The worked example as a user writes it, compiled: the measure of the hand-written regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recurra as rc
from benchmarks.core import cartpole
from benchmarks.core.workload import CHECKED, GAMMA, LR, SEED, WIDTHS, initial
from benchmarks.harness import Contestant
from recurra.frontend.nn.modules import Linear, Policy, Sequential, Tanh
from recurra.runtime.executable import Executable

LAUNCH = 8  # iterations per launch, as by hand: every count of the harness is a multiple


def program(
    B: int,
    T: int,
    I: int,
    gradients: bool,
    saved: str = "",
    via: Any = rc.jax_fn,
    room: int = 0,
    **options: Any,
) -> Executable:
    """REINFORCE with the peers' parameters and draws; `gradients` gives those too.

    With `saved`, every iteration ends with a checkpoint in that folder. `via`: see TraceableEnv.
    With `room`, that is the bound of t, and it is the data that say that rows end after T steps.
    """
    start = initial(SEED)
    env = rc.rl.env.traceable(
        cartpole.reset,
        cartpole.step,
        observation=rc.f32[4],
        actions=2,
        reward=1.0,
        episodes="absorbing",
        via=via,
    )
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B_), (i, I_), (t, T_)):
        layers: list[Any] = []
        for k, (inputs, outputs) in enumerate(WIDTHS, 1):
            weight = rc.constant(start[f"W{k}"])
            layers += [Linear(inputs, outputs, (i,), init=lambda _, w=weight: w), Tanh()]
        dnn = Policy(Sequential(*layers[:-1]))
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = dnn(o)
        a = pi.sample()
        o[b, i, t + 1], r, _ = env.step(a)
        steps = rc.like(rc.f32, domain=(b, i, t))
        steps[b, i, 0] = 1.0 + o[b, i, 0].square().sum() * 1e-6
        steps[b, i, t + 1] = steps + 1.0
        ends = rc.until(steps > T - 0.5, max=room) if room else T
        g = r[b, i, t:T_].discounted_sum(GAMMA)
        adv = rc.rl.normalize(g, over=(b, t), where=r > 0)
        l = -r * adv * pi.log_prob(a)
        l[0:B_, i, 0:T_].mean().backward()
        rc.optim.Adam(dnn.params, lr=LR).step()
        rc.log(length=r[0:B_, i, 0:T_].sum(axis=1).mean())
        if gradients:
            grads = [p.grad for p in dnn.params]
            names = [f"d_{c}{k}" for k in range(1, len(WIDTHS) + 1) for c in "Wb"]
            rc.output(**{n: g for n, g in zip(names, grads, strict=True) if g is not None})
        if saved:
            dnn[i >= 0].checkpoint(saved)
    launch = {} if saved else {"launch_steps": LAUNCH}
    return ctx.compile({B_: B, I_: I, T_: ends}, **launch, **options)


def contestant(B: int, T: int, **options: Any) -> Contestant:
    """The compiled program as a contestant; `options` are those of `program`."""
    steps: Any = None

    def run(index: int) -> NDArray[Any]:
        nonlocal steps
        if steps is None:
            steps = program(B, T, 10_000, gradients=False, **options).execution.steps(SEED)
        lengths = [next(iter(next(steps).outputs.values())) for _ in range(index // LAUNCH)]
        return np.concatenate(lengths)

    def answer() -> Mapping[str, NDArray[Any]]:
        result = program(B, T, CHECKED, gradients=True, **options).run(seed=SEED)
        first = {k: x[0] for k, x in result.items() if k != "length"}
        parameters = sum(x.size for x in first.values())
        work = {"env_steps": B * T, "parameters": parameters, "iterations": CHECKED}
        return {"length": result["length"], **first, **{k: np.array(n) for k, n in work.items()}}

    return Contestant("recurra", run, answer)
