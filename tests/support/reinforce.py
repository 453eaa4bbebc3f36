"""REINFORCE as a user writes it, in any precision, and the same program as a scan for jax.grad."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc
from benchmarks.core import cartpole
from benchmarks.core.workload import EPS, GAMMA, LR, RESET, SAMPLE, WIDTHS, initial
from benchmarks.threefry import uniform
from recurra.frontend.nn.modules import Module, Parameter, Policy, Sequential, Tanh
from recurra.ir.types import NUMPY_NAME, Type
from recurra.runtime.executable import Executable

SEED = 7
NAMES = [f"{c}{k}" for k in range(1, len(WIDTHS) + 1) for c in "Wb"]
GRADIENTS = [f"d_{n}" for n in NAMES]


class Layer(Module):
    """y = x W + b, from the peers' first parameters"""

    def __init__(self, k: int, domain: Any, dtype: str):
        start = initial(SEED, NUMPY_NAME[dtype])
        self.weight = Parameter(rc.constant(start[f"W{k}"], dtype), domain, f"W{k}")
        self.bias = Parameter(rc.constant(start[f"b{k}"], dtype), domain, f"b{k}")

    def forward(self, x: Any) -> Any:
        return x @ self.weight + self.bias


def network(domain: Any, dtype: str) -> Sequential:
    first, second, third = (Layer(k, domain, dtype) for k in (1, 2, 3))
    return Sequential(first, Tanh(), second, Tanh(), third)


def context(n: int | None = None, dtype: str = "f32", shown: tuple[str, ...] = ()) -> Any:
    """The program and its bounds' names. Without `n` returns run to the end, and are normalized.

    `shown` names what is put out besides lengths: gradients `d_W1`, ..; trajectories `o`, `a`, `r`.
    """
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):

        def reset(u: jax.Array) -> jax.Array:
            return cartpole.reset(u.astype(NUMPY_NAME[dtype]))

        env = rc.rl.env.traceable(
            reset,
            cartpole.step,
            observation=Type(dtype, (4,)),
            actions=2,
            reward=1.0,
            episodes="absorbing",
        )
        dnn = Policy(network((i,), dtype))
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = dnn(o)
        a = pi.sample()
        o[b, i, t + 1], r, d = env.step(a)
        if n is None:
            g = r[b, i, t:T].discounted_sum(GAMMA)
            adv = rc.rl.normalize(g, over=(b, t), where=r > 0)
        else:
            adv = r[b, i, t : rc.min(t + n, T)].discounted_sum(GAMMA)
        l = -r * adv * pi.log_prob(a)
        l[0:B, i, 0:T].mean().backward()
        rc.optim.Adam(dnn.params, lr=LR).step()
        rc.log(length=r[0:B, i, 0:T].sum(axis=1).mean())
        every = {"o": o, "a": a, "r": r}
        every |= {g: p.grad for g, p in zip(GRADIENTS, dnn.params, strict=True)}
        if shown:
            rc.output(**{name: every[name] for name in shown})
    return ctx, (B, I, T)


def reinforce(
    B: int,
    T: int,
    I: int,
    n: int | None = None,
    dtype: str = "f32",
    shown: tuple[str, ...] = (),
    **options: Any,
) -> Executable:
    """The program for these bounds, compiled."""
    ctx, bounds = context(n, dtype, shown)
    return ctx.compile(dict(zip(bounds, (B, I, T), strict=True)), **options)


def scanned(theta: Any, B: int, T: int, n: int | None, dtype: Any) -> Any:
    """The loss of iteration 0 as a scan of JAX, and beside it the mean episode length."""
    seed, i, b = jnp.uint32(SEED), jnp.int32(0), jnp.arange(B)

    def step(state: Any, u: Any) -> Any:
        o, alive = state
        h = jnp.tanh(o @ theta["W1"] + theta["b1"])
        y = jnp.tanh(h @ theta["W2"] + theta["b2"]) @ theta["W3"] + theta["b3"]
        a = (u > jax.nn.softmax(y)[:, 0]).astype(int)
        moved, done = cartpole.step(o, a)
        after = jax.lax.stop_gradient(jnp.where(alive[:, None] > 0, moved, o))
        return (after, jnp.where(done, 0.0, alive)), (jax.nn.log_softmax(y)[b, a], alive)

    o = cartpole.reset(uniform(seed, RESET, i, b[:, None], jnp.arange(4), dtype))
    u = uniform(seed, SAMPLE, i, b, jnp.arange(T)[:, None], dtype)
    _, (log_p, r) = jax.lax.scan(step, (o, jnp.ones(B, dtype)), u)
    ahead = np.arange(T) - np.arange(T)[:, None]
    weights = np.where((ahead >= 0) & (ahead < (n or T)), GAMMA ** np.maximum(ahead, 0.0), 0.0)
    g = weights.astype(dtype) @ r
    if n is None:
        g = (g - g.mean(where=r > 0)) / (g.std(where=r > 0) + EPS)
    return -(log_p * r * g).mean(), r.sum(0).mean()


@cache
def by_autodiff(B: int, T: int, n: int | None) -> tuple[float, dict[str, np.ndarray]]:
    """Mean length and gradients of the scan, in float64."""
    with jax.enable_x64(True):
        theta = {k: jnp.array(x) for k, x in initial(SEED, np.float64).items()}
        grad = jax.jit(jax.grad(scanned, has_aux=True), static_argnums=(1, 2, 3, 4))
        gradient, length = grad(theta, B, T, n, jnp.float64)
    return float(length), {f"d_{k}": np.array(x) for k, x in gradient.items()}
