"""A leaky integrator over T steps, all of which are returned."""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 8, "T": 16}
SMALL = {"B": 2, "T": 4}
DECAY = 0.9


def inputs(rng, B, T):
    return {"x": rng.standard_normal((B, T), "f4")}


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x = rc.input(rc.f32, (b, t))
        h = rc.like(rc.f32, (b, t))
        h[b, 0] = x[b, 0]
        h[b, t] = DECAY * h[b, t - 1] + x
        rc.output(h=h)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    def step(h, x):
        h = DECAY * h + x
        return h, h

    @jax.jit
    def integrate(x):
        return {"h": jax.lax.scan(step, jnp.zeros(B), x.T)[1].T}

    return integrate


def by_hand_eager(xp, B, T):
    def integrate(x):
        h = xp.empty((B, T), dtype=xp.float32)
        h[:, 0] = x[:, 0]
        for t in range(1, T):
            h[:, t] = DECAY * h[:, t - 1] + x[:, t]
        return {"h": h}

    return integrate
