"""Tridiagonal systems by the Thomas algorithm: a sweep forward, a sweep backward; a batch.

Thomas, Elliptic Problems in Linear Difference Equations over a Network, 1949.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 64, "N": 512}
SMALL = {"B": 2, "N": 5}


def inputs(rng, B, N):
    low, up, right = (rng.standard_normal((B, N), "f4") for _ in range(3))
    return {"low": low, "diag": 3.0 + np.abs(low) + np.abs(up), "up": up, "right": right}


def recurra_program(backend, B, N):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (n, size)):
        low, diag = rc.input(rc.f32, (b, n)), rc.input(rc.f32, (b, n))
        up, right = rc.input(rc.f32, (b, n)), rc.input(rc.f32, (b, n))
        c, d, x = (rc.like(rc.f32, (b, n)) for _ in range(3))
        c[b, 0] = up / diag
        c[b, n] = up / (diag - low * c[b, n - 1])
        d[b, 0] = right / diag
        d[b, n] = (right - low * d[b, n - 1]) / (diag - low * c[b, n - 1])
        x[b, size - 1] = d
        x[b, n] = d - c * x[b, n + 1]
        rc.output(x=x)
    return ctx.compile({rows: B, size: N}, backend=backend)


def by_hand(B, N):
    def forward(carry, now):
        c, d = carry
        low, diag, up, right = now
        scale = 1.0 / (diag - low * c)
        new = up * scale, (right - low * d) * scale
        return new, new

    def backward(x, now):
        c, d = now
        new = d - c * x
        return new, new

    @jax.jit
    def solve(low, diag, up, right):
        zero = jnp.zeros(B)
        _, cd = jax.lax.scan(forward, (zero, zero), (low.T, diag.T, up.T, right.T))
        return {"x": jax.lax.scan(backward, zero, cd, reverse=True)[1].T}

    return solve
