"""Lloyd's algorithm for k-means.

Lloyd, Least Squares Quantization in PCM, 1982.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"I": 20, "N": 1000, "K": 8, "D": 4}
SMALL = {"I": 3, "N": 9, "K": 3, "D": 2}


def inputs(rng, I, N, K, D):
    around = rng.standard_normal((K, D), "f4") * 3.0
    x = around[rng.integers(0, K, N)] + rng.standard_normal((N, D), "f4")
    return {"x": x, "start": x[:K] + 0.1}


def recurra_program(backend, I, N, K, D):
    ctx = rc.Context(num_dims=3)
    with ctx as ((i, rounds), (n, points), (k, clusters)):
        x, start = rc.input(rc.f32[D], (n,)), rc.input(rc.f32[D], (k,))
        center = rc.like(rc.f32[D], (i, k))
        distance = (x - center).square().sum()
        nearest = distance[i, n, 0:clusters].argmin()
        member = rc.where(nearest == rc.value(k, "i32"), 1.0, 0.0)
        count = member[i, 0:points, k].sum()
        total = (member * x)[i, 0:points, k].sum(axis=0)
        center[0, k] = start
        center[i + 1, k] = rc.where(count > 0.0, total / rc.maximum(count, 1.0), center)
        inertia = distance[i, n, 0:clusters].min()[i, 0:points].sum()
        rc.output(center=center[rounds - 1, k], nearest=nearest[rounds - 1, n], inertia=inertia)
    return ctx.compile({rounds: I, points: N, clusters: K}, backend=backend)


def by_hand(I, N, K, D):
    """Distances by |x|² - 2 x·c + |c|², sums of members by a product of matrices."""

    @jax.jit
    def cluster(x, start):
        squares = jnp.square(x).sum(1).sum()

        def look(center):
            part = jnp.square(center).sum(1) - 2.0 * (x @ center.T)
            return part.argmin(1).astype(jnp.int32), squares + part.min(1).sum()

        def step(center, _):
            nearest, inertia = look(center)
            member = (nearest[:, None] == jnp.arange(K)).astype(jnp.float32)
            count = member.sum(0)[:, None]
            new = jnp.where(count > 0, member.T @ x / jnp.maximum(count, 1.0), center)
            return new, inertia

        center, inertia = jax.lax.scan(step, start, None, length=I - 1)
        nearest, last = look(center)
        return {"center": center, "nearest": nearest, "inertia": jnp.append(inertia, last)}

    return cluster
