"""Linear attention that overwrites: the delta rule writes what a key does not yet remember.

Schlag, Irie and Schmidhuber, Linear Transformers Are Secretly Fast Weight Programmers, 2021, (24).
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 8, "T": 128, "D": 16}
SMALL = {"B": 2, "T": 4, "D": 3}


def inputs(rng, B, T, D):
    q, k, v = rng.standard_normal((3, B, T, D), "f4")
    return {"q": q, "k": k, "v": v, "beta": rng.random((B, T), "f4")}


def recurra_program(backend, B, T, D):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        q, k, v = (rc.input(rc.f32[D], (b, t), name=name) for name in "qkv")
        beta = rc.input(rc.f32, (b, t))
        key = k / k.norm()
        memory = rc.like(rc.f32[D, D], (b, t))
        memory[b, 0] = beta * v.outer(key)
        old = memory[b, t - 1]
        memory[b, t] = old + beta * (v - old @ key).outer(key)
        rc.output(y=memory @ q)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, D):
    @jax.jit
    def attend(q, k, v, beta):
        key = k / jnp.linalg.norm(k, axis=2, keepdims=True)

        def step(memory, now):
            q, key, v, beta = now
            miss = beta[:, None] * (v - jnp.einsum("bde,be->bd", memory, key))
            memory = memory + miss[:, :, None] * key[:, None]
            return memory, jnp.einsum("bde,be->bd", memory, q)

        now = [jnp.swapaxes(x, 0, 1) for x in (q, key, v)]
        y = jax.lax.scan(step, jnp.zeros((B, D, D)), (*now, beta.T))[1]
        return {"y": jnp.swapaxes(y, 0, 1)}

    return attend
