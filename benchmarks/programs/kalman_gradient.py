"""The likelihood of what a Kalman filter sees, and its gradient for the model's parameters.

Särkkä, Bayesian Filtering and Smoothing, 2013, theorems 4.2 and 12.1; a cart on a plane.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 16, "T": 100}
SMALL = {"B": 2, "T": 4}
LOOK = np.eye(2, 4, dtype="f4")  # positions are seen, speeds are not


def inputs(rng, B, T):
    F = np.eye(4, dtype="f4")
    F[0, 2] = F[1, 3] = 0.1
    return {
        "z": np.cumsum(rng.standard_normal((B, T, 2), "f4"), axis=1),
        "F": F,
        "log_q": np.full(4, -2.0, "f4"),
        "log_r": np.full(2, -1.0, "f4"),
    }


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        z = rc.input(rc.f32[2], (b, t))
        F, log_q, log_r = rc.input(rc.f32[4, 4]), rc.input(rc.f32[4]), rc.input(rc.f32[2])
        Q = log_q.exp().reshape(4, 1) * rc.constant(np.eye(4))
        R = log_r.exp().reshape(2, 1) * rc.constant(np.eye(2))
        H = rc.constant(LOOK)
        guess, m = rc.like(rc.f32[4], (b, t)), rc.like(rc.f32[4], (b, t))
        spread, P = rc.like(rc.f32[4, 4], (t,)), rc.like(rc.f32[4, 4], (t,))
        guess[b, 0] = 0.0
        guess[b, t] = F @ m[b, t - 1]
        spread[0] = rc.constant(np.eye(4))
        spread[t] = F @ P[t - 1] @ F.T + Q

        S = H @ spread @ H.T + R
        (p, q), (r, s) = (
            (S.index(0).index(k) for k in (0, 1)),
            (S.index(1).index(k) for k in (0, 1)),
        )
        det = p * s - q * r
        inverse = rc.stack([rc.stack([s, -q]), rc.stack([-r, p])]) / det
        gain = spread @ H.T @ inverse
        miss = z - H @ guess
        m[b, t] = guess + gain @ miss
        P[t] = spread - gain @ H @ spread
        log_likelihood = -0.5 * (miss @ inverse @ miss + det.log() + 2.0 * np.log(2.0 * np.pi))
        loss = -log_likelihood[0:rows, 0:steps].mean()
        loss.backward(wrt=[F, log_q, log_r])
        rc.output(loss=loss, d_F=F.grad, d_log_q=log_q.grad, d_log_r=log_r.grad)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    """The spread is the same for all rows, so that it is computed once."""

    def loss(parameters, z):
        F, log_q, log_r = parameters
        Q, R = jnp.diag(jnp.exp(log_q)), jnp.diag(jnp.exp(log_r))

        def step(carry, z):
            guess, spread = carry
            S = spread[:2, :2] + R
            det = S[0, 0] * S[1, 1] - S[0, 1] * S[1, 0]
            inverse = jnp.array([[S[1, 1], -S[0, 1]], [-S[1, 0], S[0, 0]]]) / det
            gain = spread[:, :2] @ inverse
            miss = z - guess[:, :2]
            m, P = guess + miss @ gain.T, spread - gain @ spread[:2]
            terms = jnp.einsum("bi,ij,bj->b", miss, inverse, miss) + jnp.log(det)
            return (m @ F.T, F @ P @ F.T + Q), terms

        start = jnp.zeros((B, 4)), jnp.eye(4)
        terms = jax.lax.scan(step, start, jnp.swapaxes(z, 0, 1))[1]
        return 0.5 * (terms.mean() + 2.0 * np.log(2.0 * np.pi))

    @jax.jit
    def value_and_gradient(z, F, log_q, log_r):
        value, slopes = jax.value_and_grad(loss)((F, log_q, log_r), z)
        return dict(zip(("loss", "d_F", "d_log_q", "d_log_r"), (value, *slopes), strict=True))

    return value_and_gradient
