"""Discounted returns, written as sums over the future (Sutton and Barto, 2018, equation 3.8)."""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 16, "T": 32}
SMALL = {"B": 2, "T": 4}
GAMMA = 0.99


def inputs(rng, B, T):
    return {"r": rng.standard_normal((B, T), "f4")}


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        r = rc.input(rc.f32, (b, t))
        rc.output(g=r[b, t:steps].discounted_sum(GAMMA))
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    def step(after, r):
        g = r + GAMMA * after
        return g, g

    @jax.jit
    def discount(r):
        return {"g": jax.lax.scan(step, jnp.zeros(B), r.T, reverse=True)[1].T}

    return discount


def by_hand_eager(xp, B, T):
    def discount(r):
        g = xp.empty((B, T), dtype=xp.float32)
        g[:, T - 1] = r[:, T - 1]
        for t in reversed(range(T - 1)):
            g[:, t] = r[:, t] + GAMMA * g[:, t + 1]
        return {"g": g}

    return discount
