"""The log-likelihood of GARCH(1,1) with normal innovations, and its gradient, a batch of series.

Bollerslev, Generalized Autoregressive Conditional Heteroskedasticity, 1986, equations 1-2 and 20.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 64, "T": 1000}
SMALL = {"B": 2, "T": 6}


def inputs(rng, B, T):
    return {
        "r": rng.standard_normal((B, T), "f4"),
        "omega": np.full(B, 0.1, "f4"),
        "alpha": rng.uniform(0.05, 0.15, B).astype("f4"),
        "beta": rng.uniform(0.7, 0.8, B).astype("f4"),
    }


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        r = rc.input(rc.f32, (b, t))
        omega, alpha, beta = rc.input(rc.f32, (b,)), rc.input(rc.f32, (b,)), rc.input(rc.f32, (b,))
        variance = rc.like(rc.f32, (b, t))
        variance[b, 0] = r[b, 0:steps].var()
        variance[b, t] = omega + alpha * r[b, t - 1] ** 2 + beta * variance[b, t - 1]
        term = np.log(2.0 * np.pi) + variance.log() + r**2 / variance
        log_likelihood = -0.5 * term[b, 0:steps].sum()
        log_likelihood.backward(wrt=[omega, alpha, beta])
        rc.output(
            log_likelihood=log_likelihood,
            d_omega=omega.grad,
            d_alpha=alpha.grad,
            d_beta=beta.grad,
        )
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    def log_likelihood(parameters, r):
        omega, alpha, beta = parameters

        def step(variance, shock):
            return shock + beta * variance, variance

        squares = jnp.square(r)
        _, variance = jax.lax.scan(step, r.var(0), omega + alpha * squares)
        terms = np.log(2.0 * np.pi) + jnp.log(variance) + squares / variance
        each = -0.5 * terms.sum(0)
        return each.sum(), each

    @jax.jit
    def value_and_gradient(r, omega, alpha, beta):
        f = jax.value_and_grad(log_likelihood, has_aux=True)
        (_, each), slopes = f((omega, alpha, beta), r.T)
        names = "log_likelihood", "d_omega", "d_alpha", "d_beta"
        return dict(zip(names, (each, *slopes), strict=True))

    return value_and_gradient
