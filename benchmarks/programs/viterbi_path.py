"""The best path of a hidden Markov model: scores forwards, then the path backwards.

Rabiner, A Tutorial on Hidden Markov Models, 1989, equations 32 to 35.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 8, "T": 100, "S": 16}
SMALL = {"B": 2, "T": 4, "S": 3}


def inputs(rng, B, T, S):
    return {"emit": rng.standard_normal((B, T, S), "f4"), "move": rng.standard_normal((S, S), "f4")}


def recurra_program(backend, B, T, S):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        emit, move = rc.input(rc.f32[S], (b, t)), rc.input(rc.f32[S, S])
        score = rc.like(rc.f32[S], (b, t))
        ways = score[b, t - 1].reshape(S, 1) + move
        score[b, 0] = emit
        score[b, t] = ways.max(axis=0) + emit
        source = ways.argmax(axis=0)  # defined from the second step on
        state = rc.like(rc.i32, (b, t))
        state[b, steps - 1] = score.argmax()
        state[b, t] = source[b, t + 1].take(state[b, t + 1])
        rc.output(state=state, score=score[b, steps - 1].max())
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, S):
    @jax.jit
    def decode(emit, move):
        def step(score, emit):
            ways = score[:, :, None] + move
            return ways.max(axis=1) + emit, ways.argmax(axis=1).astype("i4")

        def back(state, source):
            return jnp.take_along_axis(source, state[:, None], axis=1)[:, 0], state

        now = jnp.swapaxes(emit, 0, 1)
        score, sources = jax.lax.scan(step, now[0], now[1:])
        last = score.argmax(axis=1).astype("i4")
        first, states = jax.lax.scan(back, last, sources, reverse=True)
        return {"state": jnp.concatenate([first[None], states]).T, "score": score.max(axis=1)}

    return decode
