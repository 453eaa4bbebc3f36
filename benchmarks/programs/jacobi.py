"""Laplace's equation by Jacobi's method: one wall is hot, every sweep averages neighbors.

LeVeque, Finite Difference Methods for Ordinary and Partial Differential Equations, section 4.1.
"""

import jax

import recurra as rc

SIZES = {"N": 64, "T": 200}
SMALL = {"N": 6, "T": 4}


def inputs(rng, N, T):
    return {"start": rng.random((N, N), "f4")}


def recurra_program(backend, N, T):
    ctx = rc.Context(num_dims=3)
    with ctx as ((t, sweeps), (i, rows), (j, columns)):
        start = rc.input(rc.f32, (i, j))
        u = rc.like(rc.f32, (t, i, j))
        u[t, 0, j] = 1.0
        u[t, rows - 1, j] = 0.0
        u[t, i, 0] = 0.0
        u[t, i, columns - 1] = 0.0
        u[0, i, j] = start
        u[t, i, j] = 0.25 * (
            u[t - 1, i - 1, j] + u[t - 1, i + 1, j] + u[t - 1, i, j - 1] + u[t - 1, i, j + 1]
        )
        rc.output(u=u[sweeps - 1, i, j])
    return ctx.compile({sweeps: T, rows: N, columns: N}, backend=backend)


def by_hand(N, T):
    def sweep(_, u):
        inner = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        return u.at[1:-1, 1:-1].set(inner)

    @jax.jit
    def solve(start):
        u = start.at[:, 0].set(0.0).at[:, -1].set(0.0).at[-1].set(0.0).at[0].set(1.0)
        return {"u": jax.lax.fori_loop(0, T - 1, sweep, u)}

    return solve
