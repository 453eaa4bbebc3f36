"""PPO as dims, at any sizes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import recurra as rc
from recurra.rl.traceable_env import StatefulEnv
from recurra.runtime.executable import Executable

GAMMA, LAM, CLIP, ENTROPY, VALUE, MAX_NORM, LR = 0.97, 0.9, 0.05, 0.02, 0.4, 0.5, 0.3


WIDTH, SEEN, ACTIONS = 5, 3, 3


Arrays = dict[str, np.ndarray]


def drift() -> StatefulEnv:
    """A row moves by its action, and ends after three to six steps."""
    import jax.numpy as jnp

    from recurra.ir.types import Type
    from recurra.rl.space import Space

    def reset(u: Any) -> Any:
        x = 2.0 * u[:3] - 1.0
        return (x, jnp.float32(0), 3.0 + jnp.floor(u[3] * 4)), x

    def step(u: Any, state: Any, a: Any) -> Any:
        x, t, ends = state
        x = 0.8 * x + 0.3 * jnp.eye(3)[a]
        return (x, t + 1, ends), x, x.sum() - 0.1 * a, t + 1 >= ends, None

    return StatefulEnv("drift", reset, step, Space(Type("i32"), ACTIONS), 4, "autoreset")


@cache
def context() -> tuple[rc.Context, tuple[Any, ...]]:
    ctx = rc.Context(dims="b i e m n t")
    with ctx as ((b, B), (i, I), (e, E), (m, M), (n, N), (t, T)):
        env = drift()
        net = rc.rl.ActorCritic(env, (WIDTH,), ((i, e, m),))
        o = rc.like(env.observation_space, domain=(b, i, t), name="o")
        o[b, i, 0] = env.reset(domain=(b, i))
        pi, v = net[i, 0, 0](o)
        a = pi.sample()
        o[b, i, t + 1], r, d = env.step(a)
        going = 1.0 - d.cast("f32")
        after = rc.like(rc.f32, domain=(b, i, t), name="after")
        last = net[i, 0, 0](env.last.next_o)[1]
        after[b, i, T - 1] = last
        after[b, i, t] = v[b, i, t + 1]
        delta = r + GAMMA * going * after - v
        adv = rc.like(rc.f32, domain=(b, i, t), name="adv")
        adv[b, i, T - 1] = delta
        adv[b, i, t] = delta + GAMMA * LAM * going * adv[b, i, t + 1]
        k = rc.permutation(B * T, at=m * N + n, domain=(i, e))
        every = (o, a, pi.log_prob(a), v, adv, adv + v)
        new_o, new_a, logp, old_v, advs, returns = (
            rc.rl.rows(x.detach(), k, over=(b, t)) for x in every
        )
        new, new_v = net(new_o)
        advs = rc.rl.normalize(advs, over=(n,))
        ratio = (new.log_prob(new_a) - logp).exp()
        policy = rc.maximum(-advs * ratio, -advs * ratio.clip(1 - CLIP, 1 + CLIP))
        near = old_v + (new_v - old_v).clip(-CLIP, CLIP)
        value = rc.maximum((new_v - returns).square(), (near - returns).square())
        loss = (policy + VALUE * 0.5 * value - ENTROPY * new.entropy())[i, e, m, 0:N].mean()
        loss.backward(wrt=net.params)
        rc.optim.clip_grad_norm(net.params, MAX_NORM)
        rc.optim.SGD(net.params, lr=LR).step()
        rc.output(loss=loss, o=o, a=a, r=r, d=d, end=env.last.next_o[b, i, T - 1], k=k)
        rc.output(**{p.name: p for p in net.params})
        rc.log(mean_return=rc.rl.episode_returns(r, d, over=(b, t)))
    return ctx, (B, I, E, M, N, T)


@cache
def program(b: int, i: int, e: int, m: int, t: int, **options: Any) -> Executable:
    ctx, bounds = context()
    return ctx.compile(dict(zip(bounds, (b, i, e, m, b * t // m, t), strict=True)), **options)


def net(p: Arrays, o: np.ndarray) -> tuple[np.ndarray, ...]:
    """Logits [.., A], value [..], and the hidden layers."""
    ha, hc = np.tanh(o @ p["Wa1"] + p["ba1"]), np.tanh(o @ p["Wc1"] + p["bc1"])
    return ha @ p["Wa2"] + p["ba2"], (hc @ p["Wc2"] + p["bc2"])[..., 0], ha, hc
