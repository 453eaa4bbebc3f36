"""Linear systems by the method of conjugate gradients, with a fixed number of steps.

Hestenes and Stiefel, 1952; Shewchuk, 1994, section B2.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 8, "N": 48, "K": 24}
SMALL = {"B": 2, "N": 4, "K": 3}


def inputs(rng, B, N, K):
    half = rng.standard_normal((B, N, N), "f4") / N**0.5
    matrix = half @ half.transpose(0, 2, 1) + np.eye(N, dtype="f4")
    return {"A": matrix, "y": rng.standard_normal((B, N), "f4")}


def recurra_program(backend, B, N, K):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (k, steps)):
        A, y = rc.input(rc.f32[N, N], (b,)), rc.input(rc.f32[N], (b,))
        x, r, p = (rc.like(rc.f32[N], (b, k)) for _ in range(3))
        Ap = A @ p
        squared = r @ r
        alpha = squared / (p @ Ap)
        new_r = r - alpha * Ap
        x[b, 0] = 0.0
        r[b, 0] = y
        p[b, 0] = y
        x[b, k + 1] = x + alpha * p
        r[b, k + 1] = new_r
        p[b, k + 1] = new_r + (new_r @ new_r) / squared * p
        rc.output(x=x[b, steps - 1], residual=squared.sqrt())
    return ctx.compile({rows: B, steps: K + 1}, backend=backend)


def by_hand(B, N, K):
    @jax.jit
    def solve(A, y):
        def step(carry, _):
            x, r, p, squared = carry
            Ap = jnp.einsum("bij,bj->bi", A, p)
            alpha = (squared / (p * Ap).sum(1))[:, None]
            r = r - alpha * Ap
            new = (r * r).sum(1)
            return (x + alpha * p, r, r + (new / squared)[:, None] * p, new), jnp.sqrt(squared)

        start = jnp.zeros((B, N)), y, y, (y * y).sum(1)
        (x, _, _, squared), residual = jax.lax.scan(step, start, length=K)
        return {"x": x, "residual": jnp.concatenate([residual, jnp.sqrt(squared)[None]]).T}

    return solve
