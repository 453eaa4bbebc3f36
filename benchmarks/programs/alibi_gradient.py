"""Causal attention whose scores fall with the distance, and its gradient.

Press et al., Train Short, Test Long: Attention with Linear Biases, 2022, section 3.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 4, "T": 256, "H": 4, "D": 16}
SMALL = {"B": 2, "T": 5, "H": 2, "D": 3}


def inputs(rng, B, T, H, D):
    return {name: rng.standard_normal((B, T, H, D), "f4") for name in ("q", "k", "v")}


def slopes(H):
    return (2.0 ** (-8.0 * np.arange(1, H + 1) / H)).astype("f4")


def recurra_program(backend, B, T, H, D):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        q, k, v = (rc.input(rc.f32[H, D], (b, t), name=name) for name in ("q", "k", "v"))
        behind = rc.value(t)[0 : t + 1] - rc.value(t)
        scores = rc.einsum("hd,nhd->hn", q, k[b, 0 : t + 1]) / D**0.5
        scores = scores + rc.constant(slopes(H)).reshape(H, 1) * behind
        y = rc.einsum("hn,nhd->hd", scores.softmax(), v[b, 0 : t + 1])
        y.square().sum().backward(wrt=[q, k, v])
        rc.output(y=y, d_q=q.grad, d_k=k.grad, d_v=v.grad)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, H, D):
    t = np.arange(T)
    bias = slopes(H)[:, None, None] * (t - t[:, None]).astype("f4")
    bias = np.where(t <= t[:, None], bias, -np.inf)

    def loss(q, k, v):
        scores = jnp.einsum("bthd,bnhd->bhtn", q, k) / D**0.5 + bias
        y = jnp.einsum("bhtn,bnhd->bthd", jax.nn.softmax(scores), v)
        return (y**2).sum(), y

    @jax.jit
    def train(q, k, v):
        (_, y), (d_q, d_k, d_v) = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return {"y": y, "d_q": d_q, "d_k": d_k, "d_v": d_v}

    return train
