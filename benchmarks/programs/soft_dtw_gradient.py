"""The soft cost of warping one series into another, and its gradient.

Cuturi and Blondel, Soft-DTW, 2017, equation 1 and algorithm 1.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 8, "N": 48, "M": 64}
SMALL = {"B": 2, "N": 3, "M": 4}
SOFT, NEVER = 0.5, 1e9


def inputs(rng, B, N, M):
    return {"x": rng.standard_normal((B, N), "f4"), "y": rng.standard_normal((B, M), "f4")}


def recurra_program(backend, B, N, M):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (i, height), (j, width)):
        x, y = rc.input(rc.f32, (b, i)), rc.input(rc.f32, (b, j))
        cost = (x - y).square()
        d = rc.like(rc.f32, (b, i, j))
        d[b, 0, 0] = cost
        d[b, 0, j] = d[b, 0, j - 1] + cost
        d[b, i, 0] = d[b, i - 1, 0] + cost
        ways = rc.stack([d[b, i - 1, j], d[b, i, j - 1], d[b, i - 1, j - 1]])
        d[b, i, j] = cost - SOFT * (-ways / SOFT).logsumexp()
        loss = d[b, height - 1, width - 1]
        loss.backward(wrt=[x])
        rc.output(loss=loss, d_x=x.grad)
    return ctx.compile({rows: B, height: N, width: M}, backend=backend)


def by_hand(B, N, M):
    """A scan over diagonals i + j = k; a lane of each is a row i."""
    lane = jnp.arange(N)
    column = jnp.arange(N + M - 1)[:, None] - lane

    def total(x, y):
        is_inside = (column >= 0) & (column < M)
        cost = jnp.square(x[:, None] - y[:, column.clip(0, M - 1)])

        def above(x):
            return jnp.pad(x[:, :-1], ((0, 0), (1, 0)), constant_values=NEVER)

        def step(carry, now):
            one, two = carry  # one and two diagonals ago
            cost, is_inside = now
            ways = jnp.stack([above(one), one, above(two)])
            d = cost - SOFT * jax.nn.logsumexp(-ways / SOFT, axis=0)
            return (jnp.where(is_inside, d, NEVER), one), None

        never = jnp.full((B, N), NEVER)
        first = never.at[:, 0].set(cost[:, 0, 0])
        now = jnp.swapaxes(cost, 0, 1)[1:], is_inside[1:]
        (last, _), _ = jax.lax.scan(step, (first, never), now)
        return last[:, N - 1].sum(), last[:, N - 1]

    @jax.jit
    def value_and_gradient(x, y):
        d_x, loss = jax.grad(total, has_aux=True)(x, y)
        return {"loss": loss, "d_x": d_x}

    return value_and_gradient
