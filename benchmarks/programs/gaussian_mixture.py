"""A mixture of Gaussians with diagonal covariances, fitted by expectation and maximization.

Dempster, Laird and Rubin, 1977; Bishop, Pattern Recognition and Machine Learning, section 9.2.2.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"N": 512, "C": 6, "D": 4, "K": 30}
SMALL = {"N": 8, "C": 2, "D": 2, "K": 3}
FLOOR = 1e-2


def inputs(rng, N, C, D, K):
    centers = 3.0 * rng.standard_normal((C, D), "f4")
    x = centers[rng.integers(0, C, N)] + rng.standard_normal((N, D), "f4")
    return {"x": x, "start": x[:C] + 0.1}


def recurra_program(backend, N, C, D, K):
    ctx = rc.Context(num_dims=3)
    with ctx as ((k, rounds), (n, points), (c, clusters)):
        x, start = rc.input(rc.f32[D], (n,)), rc.input(rc.f32[D], (c,))
        share = rc.like(rc.f32, (k, c))
        mean, spread = rc.like(rc.f32[D], (k, c)), rc.like(rc.f32[D], (k, c))
        distance = ((x - mean).square() / spread + spread.log()).sum()
        log_joint = share.log() - 0.5 * distance
        log_evidence = log_joint[k, n, 0:clusters].logsumexp()
        owned = (log_joint - log_evidence).exp()

        count = owned[k, 0:points, c].sum()
        new_mean = (owned * x)[k, 0:points, c].sum(axis=0) / count
        share[0, c] = 1.0 / C
        mean[0, c] = start
        spread[0, c] = rc.ones(D)
        share[k + 1, c] = count / N
        mean[k + 1, c] = new_mean
        square = (owned * (x - new_mean).square())[k, 0:points, c].sum(axis=0)
        spread[k + 1, c] = square / count + FLOOR
        rc.output(evidence=log_evidence[k, 0:points].mean(), mean=mean[rounds - 1, c])
    return ctx.compile({rounds: K, points: N, clusters: C}, backend=backend)


def by_hand(N, C, D, K):
    @jax.jit
    def fit(x, start):
        def step(carry, _):
            share, mean, spread = carry
            distance = jnp.square(x[:, None] - mean) / spread + jnp.log(spread)
            log_joint = jnp.log(share) - 0.5 * distance.sum(2)
            evidence = jax.nn.logsumexp(log_joint, axis=1)
            owned = jnp.exp(log_joint - evidence[:, None])
            count = owned.sum(0)
            new = owned.T @ x / count[:, None]
            square = jnp.einsum("nc,ncd->cd", owned, jnp.square(x[:, None] - new))
            after = count / N, new, square / count[:, None] + FLOOR
            return after, (evidence.mean(), mean)

        first = jnp.full(C, 1.0 / C), start, jnp.ones((C, D))
        evidence, mean = jax.lax.scan(step, first, length=K)[1]
        return {"evidence": evidence, "mean": mean[-1]}

    return fit
