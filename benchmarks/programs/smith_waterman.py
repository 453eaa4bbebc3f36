"""The score of the best local alignment of two sequences, with affine gaps.

Smith and Waterman, 1981; Gotoh, 1982, equations 2 to 4.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 8, "N": 96, "M": 128, "V": 20}
SMALL = {"B": 2, "N": 4, "M": 5, "V": 3}
OPEN, EXTEND, NEVER = 3.0, 1.0, -1e9


def inputs(rng, B, N, M, V):
    match = rng.standard_normal((V, V), "f4") + 6.0 * np.eye(V, dtype="f4") - 1.0
    x, y = rng.integers(0, V, (B, N), "i4"), rng.integers(0, V, (B, M), "i4")
    return {"x": x, "y": y, "match": match}


def recurra_program(backend, B, N, M, V):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (i, height), (j, width)):
        x, y, match = rc.input(rc.i32, (b, i)), rc.input(rc.i32, (b, j)), rc.input(rc.f32[V, V])
        score = match.take(x).take(y)
        h = rc.like(rc.f32, (b, i, j))
        down, right = rc.like(rc.f32, (b, i, j)), rc.like(rc.f32, (b, i, j))
        diagonal = rc.like(rc.f32, (b, i, j))
        down[b, 0, j] = NEVER
        down[b, i, j] = rc.maximum(h[b, i - 1, j] - OPEN, down[b, i - 1, j] - EXTEND)
        right[b, i, 0] = NEVER
        right[b, i, j] = rc.maximum(h[b, i, j - 1] - OPEN, right[b, i, j - 1] - EXTEND)
        diagonal[b, 0, j] = score
        diagonal[b, i, 0] = score
        diagonal[b, i, j] = h[b, i - 1, j - 1] + score
        h[b, i, j] = rc.maximum(rc.maximum(diagonal, 0.0), rc.maximum(down, right))
        rc.output(best=h[b, 0:height, 0:width].max())
    return ctx.compile({rows: B, height: N, width: M}, backend=backend)


def by_hand(B, N, M, V):
    """A scan over diagonals i + j = d; a lane of each is a row i."""
    lane = jnp.arange(N)
    column = jnp.arange(N + M - 1)[:, None] - lane

    @jax.jit
    def align(x, y, match):
        table = jax.vmap(lambda x, y: match[x][:, y])(x, y)
        skewed = jnp.moveaxis(table[:, lane, column.clip(0, M - 1)], 1, 0)

        def above(x, edge):
            return jnp.pad(x[:, :-1], ((0, 0), (1, 0)), constant_values=edge)

        def step(carry, now):
            one, two, down, right, best = carry  # h of one and of two diagonals ago
            score, is_inside = now
            down = jnp.maximum(above(one, NEVER) - OPEN, above(down, NEVER) - EXTEND)
            right = jnp.maximum(one - OPEN, right - EXTEND)
            h = jnp.maximum(jnp.maximum(above(two, 0.0) + score, 0.0), jnp.maximum(down, right))
            h = jnp.where(is_inside, h, 0.0)
            down, right = jnp.where(is_inside, down, NEVER), jnp.where(is_inside, right, NEVER)
            return (h, one, down, right, jnp.maximum(best, h)), None

        zeros, never = jnp.zeros((B, N)), jnp.full((B, N), NEVER)
        start = zeros, zeros, never, never, zeros
        now = skewed, (column >= 0) & (column < M)
        return {"best": jax.lax.scan(step, start, now)[0][4].max(axis=1)}

    return align
