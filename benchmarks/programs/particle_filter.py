"""A bootstrap particle filter with systematic resampling; the particles are a dim.

Gordon, Salmond and Smith, 1993; the model of volatility of Doucet and Johansen, 2009, example 4.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 4, "T": 50, "P": 100}
SMALL = {"B": 2, "T": 4, "P": 6}
KEPT, SPREAD = 0.91, 1.0


def inputs(rng, B, T, P):
    """Offsets are the best of sixteen: close to a border of two particles, rounding decides."""
    z, push = rng.standard_normal((B, T), "f4"), rng.standard_normal((B, T, P), "f4")
    offset, kept = np.empty((B, T), "f4"), np.zeros((B, P))
    for t in range(T):
        moved = KEPT * kept + SPREAD * push[:, t]
        total = np.cumsum(np.exp(-0.5 * (moved + z[:, t, None] ** 2 * np.exp(-moved))), axis=1)
        share = total / total[:, -1:]
        tried = rng.random((16, B), "f4")
        place = (np.arange(P) + tried[:, :, None]) / P
        margin = np.abs(place[..., None] - share[:, None]).min(axis=(2, 3))
        offset[:, t] = np.take_along_axis(tried, margin.argmax(axis=0)[None], axis=0)[0]
        for b in range(B):
            source = np.searchsorted(share[b], (np.arange(P) + offset[b, t]) / P)
            kept[b] = moved[b, np.minimum(source, P - 1)]
    return {"z": z, "push": push, "offset": offset}


def recurra_program(backend, B, T, P):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (t, steps), (n, particles)):
        z, offset = rc.input(rc.f32, (b, t)), rc.input(rc.f32, (b, t))
        push = rc.input(rc.f32, (b, t, n))
        kept, moved = rc.like(rc.f32, (b, t, n)), rc.like(rc.f32, (b, t, n))
        moved[b, 0, n] = SPREAD * push
        moved[b, t, n] = KEPT * kept[b, t - 1, n] + SPREAD * push

        log_weight = -0.5 * (moved + z.square() * (-moved).exp())
        weight = (log_weight - log_weight[b, t, 0:particles].max()).exp()
        total = rc.like(rc.f32, (b, t, n))  # of the weights so far
        total[b, t, 0] = weight[b, t, 0]
        total[b, t, n] = total[b, t, n - 1] + weight
        everything = total[b, t, particles - 1]
        mean = (weight * moved)[b, t, 0:particles].sum() / everything

        place = (rc.value(n) + offset) / P * everything
        source = (total[b, t, 0:particles] < place).sum()
        kept[b, t, n] = moved[b, t, 0:particles].take(source)
        rc.output(mean=mean)
    return ctx.compile({rows: B, steps: T, particles: P}, backend=backend)


def by_hand(B, T, P):
    def step(kept, now):
        z, push, offset = now
        moved = KEPT * kept + SPREAD * push
        log_weight = -0.5 * (moved + jnp.square(z)[:, None] * jnp.exp(-moved))
        weight = jnp.exp(log_weight - log_weight.max(1, keepdims=True))
        total = jnp.cumsum(weight, axis=1)
        mean = (weight * moved).sum(1) / total[:, -1]
        place = (jnp.arange(P) + offset[:, None]) / P * total[:, -1:]
        source = jax.vmap(jnp.searchsorted)(total, place)
        kept = jnp.take_along_axis(moved, jnp.minimum(source, P - 1), axis=1)
        return kept, mean

    @jax.jit
    def track(z, push, offset):
        now = z.T, jnp.swapaxes(push, 0, 1), offset.T
        return {"mean": jax.lax.scan(step, jnp.zeros((B, P)), now)[1].T}

    return track
