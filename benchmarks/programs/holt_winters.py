"""Smoothing with a trend and a season of 12, and the gradient of the squared error of forecasts.

Winters, Forecasting Sales by Exponentially Weighted Moving Averages, 1960 (additive season).
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 32, "T": 240}
SMALL = {"B": 2, "T": 30}
P = 12


def inputs(rng, B, T):
    t = np.arange(T)
    season = rng.standard_normal((B, 1), "f4") * np.sin(2.0 * np.pi * t / P)
    y = 0.02 * t + season + 0.3 * rng.standard_normal((B, T))
    return {
        "y": y.astype("f4"),
        "raw": np.tile(np.float32([-1.0, -2.0, -1.5]), (B, 1)),
        "first": (0.1 * rng.standard_normal((B, P))).astype("f4"),
    }


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        y, raw, first = (
            rc.input(rc.f32, (b, t)),
            rc.input(rc.f32[3], (b,)),
            rc.input(rc.f32[P], (b,)),
        )
        rates = raw.sigmoid()
        alpha, beta, gamma = (rates.index(k) for k in range(3))
        level, trend = rc.like(rc.f32, (b, t)), rc.like(rc.f32, (b, t))
        season, before = rc.like(rc.f32, (b, t)), rc.like(rc.f32, (b, t))
        before[b, t < P] = first[b][t]
        before[b, t] = season[b, t - P]
        expected = rc.like(rc.f32, (b, t))  # the level expected at t
        expected[b, 0] = 0.0
        expected[b, t] = level[b, t - 1] + trend[b, t - 1]
        level[b, t] = alpha * (y - before) + (1.0 - alpha) * expected
        trend[b, 0] = 0.0
        trend[b, t] = beta * (level - level[b, t - 1]) + (1.0 - beta) * trend[b, t - 1]
        season[b, t] = gamma * (y - expected) + (1.0 - gamma) * before
        loss = (y - expected - before).square()[0:rows, 0:steps].mean()
        loss.backward(wrt=[raw, first])
        rc.output(loss=loss, d_raw=raw.grad, d_first=first.grad)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    def loss(given, y):
        raw, first = given
        alpha, beta, gamma = jax.nn.sigmoid(raw).T

        def step(carry, y):
            level, trend, seasons = carry  # the seasons: [P, B], the oldest first
            before, expected = seasons[0], level + trend
            new = alpha * (y - before) + (1.0 - alpha) * expected
            trend = beta * (new - level) + (1.0 - beta) * trend
            season = gamma * (y - expected) + (1.0 - gamma) * before
            seasons = jnp.concatenate([seasons[1:], season[None]])
            return (new, trend, seasons), jnp.square(y - expected - before)

        # a first step of its own: the trend stays 0
        before = first.T
        zero = jnp.zeros(B)
        level = alpha * (y[0] - before[0])
        season = gamma * y[0] + (1.0 - gamma) * before[0]
        start = level, zero, jnp.concatenate([before[1:], season[None]])
        _, errors = jax.lax.scan(step, start, y[1:])
        return (errors.sum() + jnp.square(y[0] - before[0]).sum()) / (B * T)

    @jax.jit
    def value_and_gradient(y, raw, first):
        value, (d_raw, d_first) = jax.value_and_grad(loss)((raw, first), y.T)
        return {"loss": value, "d_raw": d_raw, "d_first": d_first}

    return value_and_gradient
