"""Random-walk Metropolis on a curved density (Rosenbrock's), a batch of chains; draws are inputs.

Metropolis et al., Equation of State Calculations by Fast Computing Machines, 1953;
Haario et al., Adaptive proposal distribution for random walk Metropolis, 1999 (the banana).
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 64, "T": 500}
SMALL = {"B": 2, "T": 6}
BEND, SPREAD = 0.1, 10.0


def inputs(rng, B, T):
    return {"move": rng.standard_normal((B, T, 2), "f4"), "u": rng.random((B, T), "f4")}


def recurra_program(backend, B, T):
    def log_density(x):
        first, second = x.index(0), x.index(1)
        bent = second + BEND * first.square() - BEND * SPREAD**2
        return -0.5 * (first.square() / SPREAD**2 + bent.square())

    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        move, u = rc.input(rc.f32[2], (b, t)), rc.input(rc.f32, (b, t))
        x = rc.like(rc.f32[2], (b, t))
        x[b, 0] = 0.0
        proposal = x + 2.0 * move
        accept = u.log() < log_density(proposal) - log_density(x)
        x[b, t + 1] = rc.where(accept, proposal, x)
        rate = accept[0:rows, 0:steps].cast("f32").mean()
        rc.output(mean=x[b, 0:steps].mean(axis=0), last=x[b, steps - 1], rate=rate)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    def log_density(x):
        bent = x[1] + BEND * x[0] ** 2 - BEND * SPREAD**2
        return -0.5 * (x[0] ** 2 / SPREAD**2 + bent**2)

    def step(carry, now):
        x, density, total, count, _ = carry
        move, log_u = now
        proposal = x + move
        new = log_density(proposal)
        accept = log_u < new - density
        after = jnp.where(accept, proposal, x)
        return (after, jnp.where(accept, new, density), total + x, count + accept, x), None

    @jax.jit
    def sample(move, u):
        x = jnp.zeros((2, B))
        start = x, log_density(x), x, jnp.zeros(B, jnp.int32), x
        now = 2.0 * jnp.transpose(move, (1, 2, 0)), jnp.log(u).T
        (_, _, total, count, x), _ = jax.lax.scan(step, start, now)
        return {"mean": total.T / T, "last": x.T, "rate": count.sum() / (B * T)}

    return sample
