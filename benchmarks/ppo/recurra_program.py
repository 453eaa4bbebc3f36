"""Our PPO as a user writes it, compiled: the measure of everything written by hand here.

The environment is a few equations as well. Epochs, minibatches and the shuffle are written, of one
each: the compiler is told nothing of that but by the bounds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recurra as rc
from benchmarks.harness import Contestant
from benchmarks.ppo import environment as env
from benchmarks.ppo import workload as w
from benchmarks.ppo.workload import ACTIONS, SEED, Work, initial
from recurra.frontend.nn.distributions import Categorical
from recurra.frontend.nn.modules import Linear, Module, Sequential, Tanh
from recurra.runtime.executable import Executable

LAUNCH = 2  # iterations per launch: every count of the suite is a multiple


def network(work: Work, net: w.Net, domain: Any) -> Sequential:
    """Layers that start at the bench's parameters."""
    layers: list[Module] = []
    start = initial(work)
    for k, (inputs, outputs) in enumerate(work.layers(net), 1):
        weight = rc.constant(start[f"{net}_W{k}"])
        layer = Linear(inputs, outputs, domain, lambda _, x=weight: x, f"_{net}{k}")
        layers += [layer, Tanh()]
    return Sequential(*layers[:-1])


def program(work: Work, iterations: int, gradients: bool = False, **options: Any) -> Executable:
    """The program; `gradients` gives those and the next parameters too."""
    ctx = rc.Context(dims="b i e m n t")
    with ctx as ((b, B), (i, I), (e, E), (m, M), (n, N), (t, T)):
        push, x0 = map(rc.constant, env.tables(work.features))
        ends = (rc.uniform((b,)) * float(env.SPREAD)).floor() + float(env.SHORTEST)
        actor, critic = (network(work, net, ((i, e, m),)) for net in w.NETS)

        o = rc.like(rc.f32[work.features], domain=(b, i, t), name="o")
        age = rc.like(rc.f32, domain=(b, i, t), name="age")
        pi, v = Categorical(actor[i, 0, 0](o)), critic[i, 0, 0](o).index(0)
        a = pi.sample()
        moved = o * env.KEPT + a.one_hot(ACTIONS) @ push
        r = moved.cut(0, env.REWARDED).mean()
        d = age + 1.0 >= ends
        reset_o, reset_age = rc.where(d, x0, moved), rc.where(d, 0.0, age + 1.0)
        for x, first, after in ((o, x0, reset_o), (age, 0.0, reset_age)):
            x[(i == 0) & (t == 0)] = first
            x[b, i, 0] = after[b, i - 1, T - 1]
            x[b, i, t + 1] = after

        going = 1.0 - d.cast("f32")
        v_after = rc.like(rc.f32, domain=(b, i, t), name="v_after")
        v_after[b, i, T - 1] = critic[i, 0, 0](reset_o).index(0)
        v_after[b, i, t] = v[b, i, t + 1]
        delta = r + w.GAMMA * going * v_after - v
        adv = rc.like(rc.f32, domain=(b, i, t), name="adv")
        adv[b, i, T - 1] = delta
        adv[b, i, t] = delta + w.GAMMA * w.LAMBDA * going * adv[b, i, t + 1]

        k = rc.permutation(B * T, at=m * N + n, domain=(i, e))
        seen = (o, a, pi.log_prob(a), v, adv, adv + v)
        new_o, new_a, logp, old_v, advs, returns = (
            rc.rl.rows(x.detach(), k, over=(b, t)) for x in seen
        )
        new, new_v = Categorical(actor(new_o)), critic(new_o).index(0)
        advs = rc.rl.normalize(advs, over=(n,), eps=w.ADVANTAGE_EPS)
        ratio = (new.log_prob(new_a) - logp).exp()
        policy = rc.maximum(-advs * ratio, -advs * ratio.clip(1 - w.CLIP, 1 + w.CLIP))
        near = old_v + (new_v - old_v).clip(-w.CLIP, w.CLIP)
        value = 0.5 * rc.maximum((new_v - returns).square(), (near - returns).square())
        loss = policy + w.VALUE * value - w.ENTROPY * new.entropy()
        params = [*actor.params, *critic.params]
        loss[i, e, m, 0:N].mean().backward(wrt=params)
        grads = [p.grad for p in params]
        norm = rc.optim.clip_grad_norm(params, w.NORM)
        rc.optim.Adam(params, lr=w.LR, betas=(w.BETA1, w.BETA2), eps=w.EPS).step()
        rc.log(reward=r[0:B, i, 0:T].mean(), norm=norm)
        if gradients:
            named = list(initial(work))
            rc.output(**{f"d_{k}": g for k, g in zip(named, grads, strict=True) if g is not None})
            rc.output(**{f"p_{k}": p for k, p in zip(named, params, strict=True)})
    samples = work.B * work.T
    bounds = {B: work.B, I: iterations, E: 1, M: 1, N: samples, T: work.T}
    return ctx.compile(bounds, **options)


def contestant(work: Work) -> Contestant:
    """The compiled program as a contestant; it is called in a process of its own.

    There are as many workers as the process is given threads.
    """
    workers = int(os.environ.get("OMP_NUM_THREADS", "1"))
    steps: Any = None

    def run(index: int) -> NDArray[Any]:
        nonlocal steps
        if steps is None:
            whole = program(work, 10**6, launch_steps=LAUNCH, workers=workers)
            steps = whole.execution.steps(SEED)
        made = [next(steps).outputs for _ in range(-(-index // LAUNCH))]
        return np.concatenate([x["reward"] for x in made])

    def answer() -> Mapping[str, NDArray[Any]]:
        result = program(work, 2, gradients=True, workers=workers).run(seed=SEED)
        gradient = {f"d_{k}": result[f"d_{k}"][0, 0, 0] for k in initial(work)}
        theta = {k: result[f"p_{k}"][1, 0, 0] for k in initial(work)}
        counts = {"env_steps": work.B * work.T, "parameters": work.parameters}
        numbers = {k: np.array(n) for k, n in counts.items()}
        return {"reward": result["reward"][:1], **gradient, **theta, **numbers}

    return Contestant("recurra", run, answer)
