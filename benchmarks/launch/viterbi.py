"""The score of the best path of a hidden Markov model (Viterbi, 1967), for B sequences."""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 4, "T": 16, "S": 8}
SMALL = {"B": 2, "T": 4, "S": 3}


def inputs(rng, B, T, S):
    return {"emit": rng.standard_normal((B, T, S), "f4"), "move": rng.standard_normal((S, S), "f4")}


def recurra_program(backend, B, T, S):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        emit, move = rc.input(rc.f32[S], (b, t)), rc.input(rc.f32[S, S])
        best = rc.like(rc.f32[S], (b, t))
        best[b, 0] = emit[b, 0]
        best[b, t] = (best[b, t - 1].reshape(S, 1) + move).max(axis=0) + emit
        rc.output(score=best[b, steps - 1].max())
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, S):
    @jax.jit
    def decode(emit, move):
        def step(best, now):
            return (best[:, :, None] + move).max(axis=1) + now, None

        best, _ = jax.lax.scan(step, emit[:, 0], jnp.swapaxes(emit, 0, 1)[1:])
        return {"score": best.max(axis=1)}

    return decode


def by_hand_eager(xp, B, T, S):
    def decode(emit, move):
        best = emit[:, 0]
        for t in range(1, T):
            best = xp.amax(best[:, :, None] + move, 1) + emit[:, t]
        return {"score": xp.amax(best, 1)}

    return decode
