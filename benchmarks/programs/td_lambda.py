"""True online TD(λ) with linear features: the weights change at every step, by a dutch trace.

van Seijen et al., True Online Temporal-Difference Learning, 2016, algorithm 1.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 16, "T": 200, "F": 32}
SMALL = {"B": 2, "T": 5, "F": 3}
GAMMA, LAMBDA, RATE = 0.99, 0.9, 0.01


def inputs(rng, B, T, F):
    features = rng.standard_normal((B, T, F), "f4") / F**0.5
    return {"phi": features, "r": rng.standard_normal((B, T), "f4")}


def recurra_program(backend, B, T, F):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        phi, r = rc.input(rc.f32[F], (b, t)), rc.input(rc.f32, (b, t))
        w, trace, old = (
            rc.like(rc.f32[F], (b, t)),
            rc.like(rc.f32[F], (b, t)),
            rc.like(rc.f32, (b, t)),
        )
        following = rc.like(rc.f32[F], (b, t))  # features of the state after
        following[b, steps - 1] = 0.0
        following[b, t] = phi[b, t + 1]
        before = rc.like(rc.f32[F], (b, t))  # the trace that a step begins with
        before[b, 0] = 0.0
        before[b, t] = trace[b, t - 1]

        value, next_value = w @ phi, w @ following
        error = r + GAMMA * next_value - value
        decay = GAMMA * LAMBDA
        trace[b, t] = decay * before + (1.0 - RATE * decay * (before @ phi)) * phi
        w[b, 0] = 0.0
        w[b, t + 1] = w + RATE * (error + value - old) * trace - RATE * (value - old) * phi
        old[b, 0] = 0.0
        old[b, t + 1] = next_value
        rc.output(w=w[b, steps - 1], error=error)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, F):
    decay = GAMMA * LAMBDA

    def step(carry, now):
        w, trace, old, _ = carry
        phi, following, r = now
        value, next_value = (w * phi).sum(1), (w * following).sum(1)
        error = r + GAMMA * next_value - value
        scale = 1.0 - RATE * decay * (trace * phi).sum(1)
        trace = decay * trace + scale[:, None] * phi
        extra = (value - old)[:, None]
        new = w + RATE * (error[:, None] + extra) * trace - RATE * extra * phi
        return (new, trace, next_value, w), error

    @jax.jit
    def learn(phi, r):
        now = jnp.swapaxes(phi, 0, 1)
        following = jnp.pad(now[1:], ((0, 1), (0, 0), (0, 0)))
        zeros = jnp.zeros((B, F))
        start = zeros, zeros, jnp.zeros(B), zeros
        (_, _, _, w), error = jax.lax.scan(step, start, (now, following, r.T))
        return {"w": w, "error": error.T}

    return learn
