"""The gradient of a selective state-space layer (Gu and Dao, 2023) for all of its weights."""

import jax
import jax.numpy as jnp

import recurra as rc
from benchmarks.programs import mamba

SIZES, SMALL = mamba.SIZES, mamba.SMALL
WEIGHTS = ("to_delta", "to_b", "to_c", "log_a")


def inputs(rng, B, T, D, S):
    return mamba.inputs(rng, B, T, D, S) | {"goal": rng.standard_normal((B, T, D), "f4")}


def recurra_program(backend, B, T, D, S):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x, goal, log_a = (
            rc.input(rc.f32[D], (b, t)),
            rc.input(rc.f32[D], (b, t)),
            rc.input(rc.f32[D, S]),
        )
        to_delta, to_b, to_c = (
            rc.input(rc.f32[D, D]),
            rc.input(rc.f32[D, S]),
            rc.input(rc.f32[D, S]),
        )
        y = mamba.layer(x, to_delta, to_b, to_c, log_a, D, S, b, t)
        loss = (y - goal).square()[0:rows, 0:steps].mean()
        loss.backward(wrt=[to_delta, to_b, to_c, log_a])
        rc.output(loss=loss, d_to_delta=to_delta.grad, d_to_b=to_b.grad)
        rc.output(d_to_c=to_c.grad, d_log_a=log_a.grad)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, D, S):
    def loss(weights, x, goal):
        return jnp.square(mamba.outputs(x, **weights) - jnp.swapaxes(goal, 0, 1)).mean()

    @jax.jit
    def value_and_gradient(x, goal, **weights):
        value, slopes = jax.value_and_grad(loss)(weights, x, goal)
        return {"loss": value} | {f"d_{name}": slopes[name] for name in WEIGHTS}

    return value_and_gradient
