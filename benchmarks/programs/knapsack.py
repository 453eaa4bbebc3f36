"""The knapsack problem by dynamic programming: an item is taken once, or left.

Bellman, 1957; Kellerer, Pferschy and Pisinger, Knapsack Problems, 2004, section 2.3.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"N": 100, "C": 1000}
SMALL = {"N": 4, "C": 9}
NEVER = -1e9


def inputs(rng, N, C):
    return {"weight": rng.integers(1, C // 4, N, "i4"), "worth": rng.random(N, "f4")}


def recurra_program(backend, N, C):
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, items), (c, capacity)):
        weight, worth = rc.input(rc.i32, (i,)), rc.input(rc.f32, (i,))
        best = rc.like(rc.f32, (i, c))
        room = rc.value(c, "i32") - weight
        before = rc.like(rc.f32, (i, c))
        before[0, c] = 0.0
        before[i, c] = best[i - 1, c]
        taken = rc.where(room >= 0, before[i, 0:capacity].take(room) + worth, NEVER)
        best[i, c] = rc.maximum(before, taken)
        rc.output(best=best[items - 1, c])
    return ctx.compile({items: N, capacity: C}, backend=backend)


def by_hand(N, C):
    def step(best, now):
        weight, worth = now
        padded = jnp.pad(best, (C, 0), constant_values=NEVER)
        taken = jax.lax.dynamic_slice(padded, (C - weight,), (C,)) + worth
        return jnp.maximum(best, taken), None

    @jax.jit
    def solve(weight, worth):
        return {"best": jax.lax.scan(step, jnp.zeros(C), (weight, worth))[0]}

    return solve
