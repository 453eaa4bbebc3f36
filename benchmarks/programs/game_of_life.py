"""The Game of Life on a torus.

Gardner, The fantastic combinations of John Conway's new solitaire game "life", 1970.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"N": 128, "T": 100}
SMALL = {"N": 6, "T": 4}


def inputs(rng, N, T):
    return {"start": rng.integers(0, 2, (N, N), "i4")}


def recurra_program(backend, N, T):
    ctx = rc.Context(num_dims=3)
    with ctx as ((t, steps), (i, I), (j, J)):
        start = rc.input(rc.i32, (i, j))
        alive = rc.like(rc.i32, (t, i, j))
        around = sum(
            alive[t, (i + di) % I, (j + dj) % J]
            for di in (-1, 0, 1)
            for dj in (-1, 0, 1)
            if (di, dj) != (0, 0)
        )
        alive[0, i, j] = start
        alive[t + 1, i, j] = rc.where((around == 3) | ((alive == 1) & (around == 2)), 1, 0)
        rc.output(last=alive[steps - 1, i, j], count=alive[t, 0:I, 0:J].sum())
    return ctx.compile({steps: T, I: N, J: N}, backend=backend)


def by_hand(N, T):
    def step(alive, _):
        padded = jnp.pad(alive, 1, mode="wrap")
        rows = padded[:-2] + padded[1:-1] + padded[2:]
        around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] - alive
        new = ((around == 3) | ((alive == 1) & (around == 2))).astype(jnp.int32)
        return new, alive.sum()

    @jax.jit
    def play(start):
        before, count = jax.lax.scan(step, start, None, length=T - 1)
        return {"last": before, "count": jnp.append(count, before.sum())}

    return play
