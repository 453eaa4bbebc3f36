"""Learning from prioritized samples of a replay buffer, whose priorities follow the errors.

Schaul et al., 2016, algorithm 1, with one sample from each of equal shares of the priority.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"I": 50, "N": 1024, "M": 32, "F": 8}
SMALL = {"I": 3, "N": 12, "M": 4, "F": 2}
RATE, BETA = 0.05, 0.4


def inputs(rng, I, N, M, F):
    return {
        "x": rng.standard_normal((N, F), "f4"),
        "y": rng.standard_normal(N, "f4"),
        "u": rng.random((I, M), "f4"),
    }


def recurra_program(backend, I, N, M, F):
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, iterations),):
        x, y, u = rc.input(rc.f32[N, F]), rc.input(rc.f32[N]), rc.input(rc.f32[M], (i,))
        w, priority = rc.like(rc.f32[F], (i,)), rc.like(rc.f32[N], (i,))
        so_far = priority.cumsum()
        total = so_far.index(N - 1)
        place = (rc.arange(M) + u) / M * total
        k = (so_far <= place.reshape(M, 1)).sum(axis=1).clip(0, N - 1)
        chance = priority.take(k) / total
        weight = (N * chance) ** -BETA
        error = y.take(k) - x.take(k) @ w
        w[0] = 0.0
        w[i + 1] = w + RATE * ((weight / weight.max() * error) @ x.take(k)) / M
        priority[0] = 1.0
        priority[i + 1] = priority.scatter(0, k, error.abs() + 1e-2)
        rc.output(w=w, seen=k)
    return ctx.compile({iterations: I}, backend=backend)


def by_hand(I, N, M, F):
    @jax.jit
    def learn(x, y, u):
        def step(carry, u):
            w, priority = carry
            so_far = jnp.cumsum(priority)
            place = (jnp.arange(M) + u) / M * so_far[-1]
            k = jnp.minimum(jnp.searchsorted(so_far, place, side="right"), N - 1)
            weight = (N * priority[k] / so_far[-1]) ** -BETA
            error = y[k] - x[k] @ w
            new = w + RATE * ((weight / weight.max() * error) @ x[k]) / M
            return (new, priority.at[k].set(jnp.abs(error) + 1e-2)), (w, k)

        w, k = jax.lax.scan(step, (jnp.zeros(F), jnp.ones(N)), u)[1]
        return {"w": w, "seen": k.astype("i4")}

    return learn
