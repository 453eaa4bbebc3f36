"""The linear quadratic regulator: Riccati's recursion backward, then the plant simulated forward.

Anderson and Moore, Optimal Control: Linear Quadratic Methods, 1990, section 2.4.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 64, "T": 100, "N": 8, "M": 3}
SMALL = {"B": 2, "T": 4, "N": 3, "M": 2}


def inputs(rng, B, T, N, M):
    return {
        "A": np.eye(N, dtype="f4") + 0.1 * rng.standard_normal((N, N), "f4"),
        "Bm": rng.standard_normal((N, M), "f4") / np.float32(N**0.5),
        "x0": rng.standard_normal((B, N), "f4"),
    }


def recurra_program(backend, B, T, N, M):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        A, Bm, x0 = rc.input(rc.f32[N, N]), rc.input(rc.f32[N, M]), rc.input(rc.f32[N], (b,))
        Q, R = rc.constant(np.eye(N)), rc.constant(0.1 * np.eye(M))
        solve = rc.jax_fn(jnp.linalg.solve)

        P = rc.like(rc.f32[N, N], (t,))  # the cost to go of the state after step t
        K = solve(R + Bm.T @ P @ Bm, Bm.T @ P @ A)
        P[steps - 1] = Q
        P[t - 1] = Q + A.T @ P @ (A - Bm @ K)

        x = rc.like(rc.f32[N], (b, t))
        u = -K @ x
        x[b, 0] = x0
        x[b, t + 1] = A @ x + Bm @ u
        cost = x @ Q @ x + u @ R @ u
        rc.output(x=x, cost=cost[b, 0:steps].sum(), K=K[0])
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, N, M):
    Q, R = jnp.eye(N), 0.1 * jnp.eye(M)

    @jax.jit
    def regulate(A, Bm, x0):
        def backward(P, _):
            BP = Bm.T @ P
            K = jnp.linalg.solve(R + BP @ Bm, BP @ A)
            closed = A - Bm @ K
            return Q + A.T @ P @ closed, (K, closed)

        def forward(x, now):
            K, closed = now
            u = -x @ K.T
            cost = jnp.square(x).sum(1) + 0.1 * jnp.square(u).sum(1)
            return x @ closed.T, (x, cost)

        _, (K, closed) = jax.lax.scan(backward, Q, None, length=T, reverse=True)
        _, (x, cost) = jax.lax.scan(forward, x0, (K, closed))
        return {"x": jnp.swapaxes(x, 0, 1), "cost": cost.sum(0), "K": K[0]}

    return regulate
