"""Value iteration until values stand still, for several random decision processes.

Sutton and Barto, 2018, section 4.4. Every process takes as many sweeps as it needs.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 4, "S": 32, "A": 4, "K": 200}
SMALL = {"B": 2, "S": 3, "A": 2, "K": 200}
GAMMA, TOLERANCE = 0.9, 1e-3


def inputs(rng, B, S, A, K):
    P = rng.random((B, S, A, S), "f4") ** 8
    return {"P": P / P.sum(-1, keepdims=True), "R": rng.standard_normal((B, S, A), "f4")}


def recurra_program(backend, B, S, A, K):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, processes), (k, sweeps)):
        P, R = rc.input(rc.f32[S, A, S], (b,)), rc.input(rc.f32[S, A], (b,))
        v = rc.like(rc.f32[S], (b, k))
        q = R + GAMMA * rc.einsum("saz,z->sa", P, v)
        better = q.max(axis=1)
        v[b, 0] = 0.0
        v[b, k + 1] = better
        done = rc.until((better - v).abs().max() < TOLERANCE, max=K)
        rc.output(v=better[b, sweeps - 1], policy=q.argmax(axis=1)[b, sweeps - 1])
        rc.output(sweeps=rc.value(sweeps, "i32"))
    return ctx.compile({processes: B, sweeps: done}, backend=backend)


def by_hand(B, S, A, K):
    @jax.jit
    def solve(P, R):
        def goes_on(carry):
            _, _, going, _, k = carry
            return going.any() & (k < K)

        def sweep(carry):
            v, q, going, count, k = carry
            new_q = R + GAMMA * jnp.einsum("bsaz,bz->bsa", P, v)
            new = new_q.max(axis=2)
            moved = jnp.abs(new - v).max(axis=1) >= TOLERANCE
            v = jnp.where(going[:, None], new, v)
            q = jnp.where(going[:, None, None], new_q, q)
            return v, q, going & moved, count + going, k + 1

        start = jnp.zeros((B, S)), R, jnp.ones(B, bool), jnp.zeros(B, "i4"), 0
        v, q, _, count, _ = jax.lax.while_loop(goes_on, sweep, start)
        return {"v": v, "policy": q.argmax(axis=2).astype("i4"), "sweeps": count}

    return solve
