"""Poisson's equation by Gauss and Seidel's method: a sweep reads what it has just written.

LeVeque, Finite Difference Methods for Ordinary and Partial Differential Equations, section 4.1.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"N": 32, "T": 50}
SMALL = {"N": 5, "T": 3}


def inputs(rng, N, T):
    return {"f": rng.standard_normal((N, N), "f4")}


def recurra_program(backend, N, T):
    ctx = rc.Context(num_dims=3)
    with ctx as ((t, sweeps), (i, rows), (j, columns)):
        f = rc.input(rc.f32, (i, j))
        u = rc.like(rc.f32, (t, i, j))
        u[t, 0, j] = 0.0
        u[t, rows - 1, j] = 0.0
        u[t, i, 0] = 0.0
        u[t, i, columns - 1] = 0.0
        u[0, i, j] = 0.0
        u[t, i, j] = 0.25 * (
            u[t, i - 1, j] + u[t - 1, i + 1, j] + u[t, i, j - 1] + u[t - 1, i, j + 1] - f
        )
        rc.output(u=u[sweeps - 1, i, j])
    return ctx.compile({sweeps: T, rows: N, columns: N}, backend=backend)


def by_hand(N, T):
    """A row waits for itself by a linear recurrence, u[j] = u[j-1] / 4 + c[j]: one product."""
    distance = np.subtract.outer(np.arange(N - 2), np.arange(N - 2))
    unrolled = jnp.asarray(np.where(distance >= 0, 0.25 ** np.maximum(distance, 0), 0.0), "f4")

    @jax.jit
    def solve(f):
        def row(above, now):
            below, old, f = now
            right = jnp.pad(old[1:], (0, 1))
            new = unrolled @ (0.25 * (above + below + right - f))
            return new, new

        def sweep(_, u):
            below = jnp.pad(u[1:], ((0, 1), (0, 0)))
            return jax.lax.scan(row, jnp.zeros(N - 2), (below, u, f[1:-1, 1:-1]))[1]

        inner = jax.lax.fori_loop(0, T - 1, sweep, jnp.zeros((N - 2, N - 2)))
        return {"u": jnp.pad(inner, 1)}

    return solve
