"""Numbers over rows and steps, with mean 0 and deviation 1."""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 16, "T": 64}
SMALL = {"B": 2, "T": 4}
EPSILON = 1e-8


def inputs(rng, B, T):
    return {"x": rng.standard_normal((B, T), "f4")}


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x = rc.input(rc.f32, (b, t))
        everything = x[0:rows, 0:steps]
        rc.output(y=(x - everything.mean()) / (everything.std() + EPSILON))
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    return jax.jit(lambda x: {"y": (x - jnp.mean(x)) / (jnp.std(x) + EPSILON)})


def by_hand_eager(xp, B, T):
    ours = {"ddof": 0} if xp.__name__ == "numpy" else {"correction": 0}
    return lambda x: {"y": (x - x.mean()) / (x.std(**ours) + EPSILON)}
