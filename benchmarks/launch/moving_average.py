"""The mean of the last five values at every step; of as many as there are at the beginning."""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 8, "T": 64}
SMALL = {"B": 2, "T": 7}
WINDOW = 5


def inputs(rng, B, T):
    return {"x": rng.standard_normal((B, T), "f4")}


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x = rc.input(rc.f32, (b, t))
        rc.output(y=x[b, rc.max(t - WINDOW + 1, 0) : t + 1].mean())
    return ctx.compile({rows: B, steps: T}, backend=backend)


def counts(T):
    """How many values there are at each step."""
    return np.minimum(np.arange(1, T + 1), WINDOW).astype("f4")


def by_hand(B, T):
    @jax.jit
    def average(x):
        padded = jnp.pad(x, ((0, 0), (WINDOW - 1, 0)))
        return {"y": sum(padded[:, k : k + T] for k in range(WINDOW)) / counts(T)}

    return average


def by_hand_eager(xp, B, T):
    count = xp.asarray(counts(T))

    def average(x):
        total = xp.zeros((B, T + WINDOW - 1), dtype=xp.float32)
        for k in range(WINDOW):
            total[:, k : k + T] += x
        return {"y": total[:, :T] / count}

    return average
