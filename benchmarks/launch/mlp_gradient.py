"""The loss of a network of two layers and its gradient, for one batch."""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 32, "N": 8, "M": 16}
SMALL = {"B": 3, "N": 2, "M": 4}


def inputs(rng, B, N, M):
    return {
        "x": rng.standard_normal((B, N), "f4"),
        "y": rng.standard_normal(B, "f4"),
        "W": rng.standard_normal((N, M), "f4"),
        "c": rng.standard_normal(M, "f4"),
        "v": rng.standard_normal(M, "f4"),
    }


def recurra_program(backend, B, N, M):
    ctx = rc.Context(num_dims=1)
    with ctx as ((b, rows),):
        x, y = rc.input(rc.f32[N], (b,)), rc.input(rc.f32, (b,))
        W, c, v = rc.input(rc.f32[N, M]), rc.input(rc.f32[M]), rc.input(rc.f32[M])
        error = (x @ W + c).tanh() @ v - y
        loss = error.square()[0:rows].mean()
        loss.backward(wrt=[W, c, v])
        rc.output(loss=loss, d_W=W.grad, d_c=c.grad, d_v=v.grad)
    return ctx.compile({rows: B}, backend=backend)


def by_hand(B, N, M):
    def loss(parameters, x, y):
        W, c, v = parameters
        return jnp.square(jnp.tanh(x @ W + c) @ v - y).mean()

    @jax.jit
    def value_and_gradient(x, y, W, c, v):
        value, (d_W, d_c, d_v) = jax.value_and_grad(loss)((W, c, v), x, y)
        return {"loss": value, "d_W": d_W, "d_c": d_c, "d_v": d_v}

    return value_and_gradient


def by_hand_eager(xp, B, N, M):
    def value_and_gradient(x, y, W, c, v):
        h = xp.tanh(x @ W + c)
        error = h @ v - y
        d_error = error * (2.0 / B)
        d_before = xp.outer(d_error, v) * (1.0 - h * h)
        gradient = {"d_W": x.T @ d_before, "d_c": d_before.sum(0), "d_v": d_error @ h}
        return {"loss": xp.square(error).mean(), **gradient}

    return value_and_gradient
