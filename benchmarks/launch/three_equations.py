"""Three equations: a layer, its squares, their mean over rows."""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 8, "N": 4, "M": 16}
SMALL = {"B": 2, "N": 3, "M": 4}


def inputs(rng, B, N, M):
    return {"x": rng.standard_normal((B, N), "f4"), "W": rng.standard_normal((N, M), "f4")}


def recurra_program(backend, B, N, M):
    ctx = rc.Context(num_dims=1)
    with ctx as ((b, rows),):
        x, W = rc.input(rc.f32[N], (b,)), rc.input(rc.f32[N, M])
        y = (x @ W).tanh()
        energy = y.square()
        rc.output(mean=energy[0:rows].mean(axis=0))
    return ctx.compile({rows: B}, backend=backend)


def by_hand(B, N, M):
    return jax.jit(lambda x, W: {"mean": jnp.square(jnp.tanh(x @ W)).mean(axis=0)})


def by_hand_eager(xp, B, N, M):
    return lambda x, W: {"mean": xp.square(xp.tanh(x @ W)).mean(0)}
