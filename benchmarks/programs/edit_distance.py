"""The Levenshtein distance of pairs of strings, a batch.

Wagner and Fischer, The String-to-String Correction Problem, 1974.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 32, "N": 128, "M": 128}
SMALL = {"B": 2, "N": 5, "M": 4}


def inputs(rng, B, N, M):
    return {"x": rng.integers(0, 4, (B, N), "i4"), "y": rng.integers(0, 4, (B, M), "i4")}


def recurra_program(backend, B, N, M):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (i, I), (j, J)):
        x, y = rc.input(rc.i32[N], (b,)), rc.input(rc.i32[M], (b,))
        d = rc.like(rc.i32, (b, i, j))
        d[b, 0, j] = rc.value(j, "i32")
        d[b, i, 0] = rc.value(i, "i32")
        change = d[b, i - 1, j - 1] + rc.where(x[b][i - 1] == y[b][j - 1], 0, 1)
        d[b, i, j] = rc.minimum(rc.minimum(d[b, i - 1, j], d[b, i, j - 1]) + 1, change)
        rc.output(distance=d[b, N, M])
    return ctx.compile({rows: B, I: N + 1, J: M + 1}, backend=backend)


def by_hand(B, N, M):
    """By diagonals: on diagonal s, element i is d[i, s - i]."""
    i = jnp.arange(N + 1)

    @jax.jit
    def distance(x, y):
        left = jnp.pad(x, ((0, 0), (1, 0)), constant_values=-1)
        # y[s - i - 1] for i = 0..N is a window of y in reverse
        turned = jnp.pad(y[:, ::-1], ((0, 0), (N + 1, N + 1)), constant_values=-2)

        def step(carry, s):
            before, last = carry  # diagonals s - 2 and s - 1
            right = jax.lax.dynamic_slice(turned, (0, N + 1 + M - s), (B, N + 1))
            up = jnp.pad(last[:, :-1], ((0, 0), (1, 0)))
            corner = jnp.pad(before[:, :-1], ((0, 0), (1, 0)))
            new = jnp.minimum(jnp.minimum(up, last) + 1, corner + (left != right))
            new = jnp.where((i == 0) | (i == s), s, new)
            return (last, new), None

        zero = jnp.zeros((B, N + 1), jnp.int32)
        one = jnp.where(i <= 1, 1, zero)
        (_, last), _ = jax.lax.scan(step, (zero, one), jnp.arange(2, N + M + 1))
        return {"distance": last[:, N]}

    return distance
