"""An echo state network: a fixed reservoir, and the normal equations of its readout by ridge.

Jaeger, The "echo state" approach to analysing and training recurrent neural networks, 2001;
Lukoševičius, A Practical Guide to Applying Echo State Networks, 2012, equations 2-3 and 9.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"T": 500, "N": 100, "U": 3, "Y": 2, "wash": 50}
SMALL = {"T": 8, "N": 4, "U": 2, "Y": 2, "wash": 2}
LEAK, RIDGE = 0.3, 1e-2


def inputs(rng, T, N, U, Y, wash):
    return {
        "u": rng.standard_normal((T, U), "f4"),
        "y": rng.standard_normal((T, Y), "f4"),
        "W_in": rng.uniform(-0.5, 0.5, (N, 1 + U)).astype("f4"),
        "W": (0.9 * rng.standard_normal((N, N)) / N**0.5).astype("f4"),
    }


def recurra_program(backend, T, N, U, Y, wash):
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, steps),):
        u, y = rc.input(rc.f32[U], (t,)), rc.input(rc.f32[Y], (t,))
        W_in, W = rc.input(rc.f32[N, 1 + U]), rc.input(rc.f32[N, N])
        x = rc.like(rc.f32[N], (t,))
        x[0] = (W_in @ rc.concat([rc.ones(1), u])).tanh() * LEAK
        x[t] = (1.0 - LEAK) * x[t - 1] + LEAK * (
            W_in @ rc.concat([rc.ones(1), u]) + W @ x[t - 1]
        ).tanh()
        seen = rc.concat([rc.ones(1), u, x])
        gram = seen.outer(seen)[wash:steps].sum(axis=0) + RIDGE * rc.constant(np.eye(1 + U + N))
        cross = seen.outer(y)[wash:steps].sum(axis=0)
        rc.output(gram=gram, cross=cross, x=x[steps - 1])
    return ctx.compile({steps: T}, backend=backend)


def by_hand(T, N, U, Y, wash):
    @jax.jit
    def normal_equations(u, y, W_in, W):
        given = u @ W_in[:, 1:].T + W_in[:, 0]

        def step(x, given):
            x = (1.0 - LEAK) * x + LEAK * jnp.tanh(given + W @ x)
            return x, x

        last, x = jax.lax.scan(step, jnp.zeros(N), given)
        seen = jnp.concatenate([jnp.ones((T, 1)), u, x], axis=1)[wash:]
        gram = seen.T @ seen + RIDGE * jnp.eye(1 + U + N)
        return {"gram": gram, "cross": seen.T @ y[wash:], "x": last}

    return normal_equations
