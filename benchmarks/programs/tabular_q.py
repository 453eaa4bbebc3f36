"""Q-learning with a table, from given streams of transitions.

Watkins and Dayan, Q-learning, 1992, equation 1.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 16, "T": 1000, "S": 30, "A": 4}
SMALL = {"B": 2, "T": 6, "S": 3, "A": 2}
RATE, GAMMA = 0.1, 0.95


def inputs(rng, B, T, S, A):
    return {
        "s": rng.integers(0, S, (B, T), "i4"),
        "a": rng.integers(0, A, (B, T), "i4"),
        "r": rng.standard_normal((B, T), "f4"),
        "after": rng.integers(0, S, (B, T), "i4"),
    }


def recurra_program(backend, B, T, S, A):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        s, a, after = rc.input(rc.i32, (b, t)), rc.input(rc.i32, (b, t)), rc.input(rc.i32, (b, t))
        r = rc.input(rc.f32, (b, t))
        Q = rc.like(rc.f32[S, A], (b, t))
        target = r + GAMMA * Q[b, t][after].max()
        error = target - Q[b, t][s, a]
        row = Q[b, t][s] + RATE * error * a.one_hot(A)
        Q[b, 0] = 0.0
        Q[b, t + 1] = Q.scatter(axis=0, index=s.broadcast_to((1, A)), value=row.reshape(1, A))
        rc.output(Q=Q[b, steps - 1], error=error)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, S, A):
    row = jnp.arange(B)

    @jax.jit
    def learn(s, a, r, after):
        zero = jnp.zeros((B, S, A))

        def go(Q, now):
            s, a, r, after = now
            error = r + GAMMA * Q[row, after].max(1) - Q[row, s, a]
            return Q.at[row, s, a].add(RATE * error), error

        now = s.T, a.T, r.T, after.T
        Q, first = jax.lax.scan(go, zero, jax.tree.map(lambda z: z[:-1], now))
        last = go(Q, jax.tree.map(lambda z: z[-1], now))[1]
        return {"Q": Q, "error": jnp.concatenate([first, last[None]]).T}

    return learn
