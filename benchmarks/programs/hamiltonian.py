"""Hamiltonian Monte Carlo: chains of samples of a logistic regression's weights.

Neal, MCMC Using Hamiltonian Dynamics, 2011, figure 2; the draws are given.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 8, "K": 40, "L": 10, "N": 32, "F": 4}
SMALL = {"B": 2, "K": 3, "L": 2, "N": 4, "F": 2}
STEP = 0.05


def inputs(rng, B, K, L, N, F):
    return {
        "x": rng.standard_normal((N, F), "f4"),
        "y": rng.integers(0, 2, N).astype("f4"),
        "kick": rng.standard_normal((B, K, F), "f4"),
        "u": rng.random((B, K), "f4"),
    }


def recurra_program(backend, B, K, L, N, F):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, chains), (k, samples), (l, leaps)):
        x, y = rc.input(rc.f32[N, F]), rc.input(rc.f32[N])
        kick, u = rc.input(rc.f32[F], (b, k)), rc.input(rc.f32, (b, k))

        def potential(w):
            logit = x @ w
            return ((1.0 + logit.exp()).log() - y * logit).sum() + 0.5 * w.square().sum()

        def slope(w):
            return x.T @ ((x @ w).sigmoid() - y) + w

        w = rc.like(rc.f32[F], (b, k))
        q, p = rc.like(rc.f32[F], (b, k, l)), rc.like(rc.f32[F], (b, k, l))
        half = p - 0.5 * STEP * slope(q)
        moved = q + STEP * half
        q[b, k, 0] = w
        p[b, k, 0] = kick
        q[b, k, l + 1] = moved
        p[b, k, l + 1] = half - 0.5 * STEP * slope(moved)
        end_q, end_p = q[b, k, leaps - 1], p[b, k, leaps - 1]
        before = potential(w) + 0.5 * kick.square().sum()
        after = potential(end_q) + 0.5 * end_p.square().sum()
        accepted = u < (before - after).exp()
        w[b, 0] = 0.0
        w[b, k + 1] = rc.where(accepted, end_q, w)
        rc.output(w=w, accepted=accepted.cast("f32")[b, 0:samples].mean())
    return ctx.compile({chains: B, samples: K, leaps: L + 1}, backend=backend)


def by_hand(B, K, L, N, F):
    @jax.jit
    def sample(x, y, kick, u):
        def potential(w):
            logit = w @ x.T
            terms = jnp.log1p(jnp.exp(logit)) - y * logit
            return terms.sum(1) + 0.5 * jnp.square(w).sum(1)

        def slope(w):
            return (jax.nn.sigmoid(w @ x.T) - y) @ x + w

        def leap(_, carry):
            q, p, pull = carry
            half = p - 0.5 * STEP * pull
            q = q + STEP * half
            pull = slope(q)
            return q, half - 0.5 * STEP * pull, pull

        def step(w, now):
            kick, u = now
            q, p, _ = jax.lax.fori_loop(0, L, leap, (w, kick, slope(w)))
            before = potential(w) + 0.5 * jnp.square(kick).sum(1)
            after = potential(q) + 0.5 * jnp.square(p).sum(1)
            accepted = u < jnp.exp(before - after)
            return jnp.where(accepted[:, None], q, w), (w, accepted)

        given = jnp.swapaxes(kick, 0, 1), u.T
        w, accepted = jax.lax.scan(step, jnp.zeros((B, F)), given)[1]
        return {"w": jnp.swapaxes(w, 0, 1), "accepted": accepted.mean(axis=0, dtype=np.float32)}

    return sample
