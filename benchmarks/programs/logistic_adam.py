"""Logistic regression by Adam; the minibatches are given.

Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, algorithm 1 and section 6.1.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"I": 100, "N": 128, "F": 64}
SMALL = {"I": 4, "N": 5, "F": 3}
RATE = 0.01


def inputs(rng, I, N, F):
    x = rng.standard_normal((I, N, F), "f4")
    truth = rng.standard_normal(F, "f4")
    return {"x": x, "label": (x @ truth + rng.standard_normal((I, N), "f4") > 0).astype("f4")}


def recurra_program(backend, I, N, F):
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, steps), (n, batch)):
        x, label = rc.input(rc.f32[F], (i, n)), rc.input(rc.f32, (i, n))
        w = rc.nn.Parameter(rc.zeros(F), domain=(i,), name="w")
        bias = rc.nn.Parameter(rc.constant(0.0), domain=(i,), name="bias")
        p = (x @ w + bias).sigmoid()
        cross = -(label * p.log() + (1.0 - label) * (1.0 - p).log())
        loss = cross[i, 0:batch].mean()
        loss.backward()
        rc.optim.Adam([w, bias], lr=RATE).step()
        rc.output(w=w.next[steps - 1], bias=bias.next[steps - 1], loss=loss)
    return ctx.compile({steps: I, batch: N}, backend=backend)


def by_hand(I, N, F):
    def step(carry, now):
        w, m, v = carry
        x, label, k = now
        z = x @ w[:-1] + w[-1]
        loss = (jnp.logaddexp(0.0, z) - label * z).mean()
        error = (jax.nn.sigmoid(z) - label) / N
        slope = jnp.append(error @ x, error.sum())
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * jnp.square(slope)
        root = jnp.sqrt(v / (1.0 - 0.999**k)) + 1e-8
        return (w - RATE * m / (1.0 - 0.9**k) / root, m, v), loss

    @jax.jit
    def learn(x, label):
        zero = jnp.zeros(F + 1)
        now = x, label, jnp.arange(1.0, I + 1.0)
        (w, _, _), loss = jax.lax.scan(step, (zero, zero, zero), now)
        return {"w": w[:-1], "bias": w[-1], "loss": loss}

    return learn
