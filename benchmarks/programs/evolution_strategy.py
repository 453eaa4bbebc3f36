"""An evolution strategy with mirrored perturbations minimizes Rosenbrock's function.

Salimans et al., 2017, algorithm 1; the perturbations are given, so that both forms have the same.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"I": 50, "N": 64, "D": 16}
SMALL = {"I": 3, "N": 4, "D": 3}
SIGMA, RATE = 0.1, 0.02


def inputs(rng, I, N, D):
    noise = rng.standard_normal((I, N, D), "f4")
    return {"start": rng.standard_normal(D, "f4"), "noise": noise}


def recurra_program(backend, I, N, D):
    def rosenbrock(x):
        left, right = x.cut(0, D - 1), x.cut(1, D)
        return (100.0 * (right - left.square()).square() + (1.0 - left).square()).sum()

    ctx = rc.Context(num_dims=2)
    with ctx as ((i, iterations), (n, people)):
        start, noise = rc.input(rc.f32[D]), rc.input(rc.f32[D], (i, n))
        mean = rc.like(rc.f32[D], (i,))
        up, down = rosenbrock(mean + SIGMA * noise), rosenbrock(mean - SIGMA * noise)
        every = rc.concat([up[i, 0:people], down[i, 0:people]])
        fitness = (up - down) / (every.std() + 1e-8)
        slope = (fitness * noise)[i, 0:people].mean(axis=0) / (2.0 * SIGMA)
        mean[0] = start
        mean[i + 1] = mean - RATE * slope
        rc.output(mean=mean, best=rc.minimum(up, down)[i, 0:people].min())
    return ctx.compile({iterations: I, people: N}, backend=backend)


def by_hand(I, N, D):
    def rosenbrock(x):
        left, right = x[..., :-1], x[..., 1:]
        return (100.0 * jnp.square(right - left * left) + jnp.square(1.0 - left)).sum(-1)

    def iterate(mean, noise):
        up, down = rosenbrock(mean + SIGMA * noise), rosenbrock(mean - SIGMA * noise)
        fitness = (up - down) / (jnp.concatenate([up, down]).std() + 1e-8)
        slope = fitness @ noise / (2.0 * SIGMA * N)
        return mean - RATE * slope, (mean, jnp.minimum(up, down).min())

    @jax.jit
    def evolve(start, noise):
        mean, best = jax.lax.scan(iterate, start, noise)[1]
        return {"mean": mean, "best": best}

    return evolve
