"""Optimal transport between two clouds by Sinkhorn's algorithm, and its gradient for the points.

Cuturi, 2013; the updates are of logarithms, as in Peyré and Cuturi, 2019, section 4.4.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"N": 64, "K": 50}
SMALL = {"N": 4, "K": 3}
EPSILON = 0.1


def inputs(rng, N, K):
    return {"x": rng.random((N, 2), "f4"), "y": rng.random((N, 2), "f4")}


def recurra_program(backend, N, K):
    ctx = rc.Context(num_dims=1)
    with ctx as ((k, rounds),):
        x, y = rc.input(rc.f32[N, 2]), rc.input(rc.f32[N, 2])
        cost = (x.reshape(N, 1, 2) - y).square().sum(axis=2)
        f, g = rc.like(rc.f32[N], (k,)), rc.like(rc.f32[N], (k,))
        mass = rc.constant(float(N)).log()
        before = rc.like(rc.f32[N], (k,))
        before[0] = 0.0
        before[k] = g[k - 1]
        f[k] = -EPSILON * (((before - cost) / EPSILON).logsumexp(axis=1) - mass)
        g[k] = -EPSILON * (((f.reshape(N, 1) - cost) / EPSILON).logsumexp(axis=0) - mass)
        plan = ((f.reshape(N, 1) + g - cost) / EPSILON).exp() / (N * N)
        loss = (plan * cost).sum()[rounds - 1]
        loss.backward(wrt=[x])
        rc.output(loss=loss, d_x=x.grad)
    return ctx.compile({rounds: K}, backend=backend)


def by_hand(N, K):
    mass = jnp.log(float(N))

    def loss(x, y):
        cost = jnp.square(x[:, None] - y).sum(2)

        def update(g, _):
            f = -EPSILON * (jax.nn.logsumexp((g - cost) / EPSILON, axis=1) - mass)
            g = -EPSILON * (jax.nn.logsumexp((f[:, None] - cost) / EPSILON, axis=0) - mass)
            return g, f

        g, f = jax.lax.scan(update, jnp.zeros(N), length=K)
        return (jnp.exp((f[-1][:, None] + g - cost) / EPSILON) / (N * N) * cost).sum()

    @jax.jit
    def value_and_gradient(x, y):
        value, d_x = jax.value_and_grad(loss)(x, y)
        return {"loss": value, "d_x": d_x}

    return value_and_gradient
