"""Generalized advantage estimation (Schulman et al., 2016, equation 16) of B rollouts."""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 16, "T": 64}
SMALL = {"B": 2, "T": 5}
GAMMA, LAMBDA = 0.99, 0.95


def inputs(rng, B, T):
    return {
        "reward": rng.standard_normal((B, T), "f4"),
        "value": rng.standard_normal((B, T), "f4"),
        "last_value": rng.standard_normal(B, "f4"),
        "going_on": (rng.random((B, T)) > 0.05).astype("f4"),
    }


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        reward, value, going_on = (
            rc.input(rc.f32, (b, t), name=name) for name in ("reward", "value", "going_on")
        )
        last_value = rc.input(rc.f32, (b,))
        next_value = rc.like(rc.f32, (b, t))
        next_value[b, steps - 1] = last_value
        next_value[b, t] = value[b, t + 1]
        delta = reward + GAMMA * next_value * going_on - value
        advantage = rc.like(rc.f32, (b, t))
        advantage[b, steps - 1] = delta
        advantage[b, t] = delta + GAMMA * LAMBDA * going_on * advantage[b, t + 1]
        rc.output(advantage=advantage, target=advantage + value)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    def step(carry, now):
        advantage, next_value = carry
        reward, value, going_on = now
        delta = reward + GAMMA * next_value * going_on - value
        advantage = delta + GAMMA * LAMBDA * going_on * advantage
        return (advantage, value), advantage

    @jax.jit
    def estimate(reward, value, last_value, going_on):
        start = jnp.zeros(B), last_value
        _, made = jax.lax.scan(step, start, (reward.T, value.T, going_on.T), reverse=True)
        return {"advantage": made.T, "target": made.T + value}

    return estimate


def by_hand_eager(xp, B, T):
    def estimate(reward, value, last_value, going_on):
        advantage = xp.empty((B, T), dtype=xp.float32)
        after, next_value = 0.0, last_value
        for t in reversed(range(T)):
            delta = reward[:, t] + GAMMA * next_value * going_on[:, t] - value[:, t]
            after = delta + GAMMA * LAMBDA * going_on[:, t] * after
            advantage[:, t], next_value = after, value[:, t]
        return {"advantage": advantage, "target": advantage + value}

    return estimate
