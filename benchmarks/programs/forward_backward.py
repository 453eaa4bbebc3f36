"""The probabilities of the hidden states given all that is seen: the forward-backward algorithm.

Rabiner, A Tutorial on Hidden Markov Models, 1989, sections III.A and V.A (the scaling).
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 32, "T": 200, "S": 16, "O": 20}
SMALL = {"B": 2, "T": 5, "S": 3, "O": 4}


def inputs(rng, B, T, S, O):
    return {
        "seen": rng.integers(0, O, (B, T), "i4"),
        "A": rng.dirichlet([1.0] * S, S).astype("f4"),
        "E": rng.dirichlet([1.0] * O, S).astype("f4"),
        "start": rng.dirichlet([1.0] * S).astype("f4"),
    }


def recurra_program(backend, B, T, S, O):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        seen = rc.input(rc.i32, (b, t))
        A, E, start = rc.input(rc.f32[S, S]), rc.input(rc.f32[S, O]), rc.input(rc.f32[S])
        likely = E.take(seen, axis=1)
        joint, alpha, beta = (rc.like(rc.f32[S], (b, t)) for _ in range(3))
        joint[b, 0] = start * likely
        joint[b, t] = (alpha[b, t - 1] @ A) * likely
        scale = joint.sum()
        alpha[b, t] = joint / scale
        beta[b, steps - 1] = 1.0
        beta[b, t] = A @ (likely * beta)[b, t + 1] / scale[b, t + 1]
        rc.output(posterior=alpha * beta, log_likelihood=scale.log()[b, 0:steps].sum())
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, S, O):
    @jax.jit
    def smooth(seen, A, E, start):
        likely = E.T[seen.T]  # [T, B, S]

        def forward(guess, likely):
            joint = guess * likely
            scale = joint.sum(1, keepdims=True)
            alpha = joint / scale
            return alpha @ A, (alpha, scale)

        def backward(beta, now):
            likely, scale = now
            return (likely * beta / scale) @ A.T, beta

        guess = jnp.broadcast_to(start, (B, S))
        _, (alpha, scale) = jax.lax.scan(forward, guess, likely)
        _, beta = jax.lax.scan(backward, jnp.ones((B, S)), (likely, scale), reverse=True)
        return {
            "posterior": jnp.swapaxes(alpha * beta, 0, 1),
            "log_likelihood": jnp.log(scale[..., 0]).sum(0),
        }

    return smooth
