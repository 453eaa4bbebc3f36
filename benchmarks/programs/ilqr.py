"""The iterative linear-quadratic regulator swings a pendulum up.

Tassa, Erez and Todorov, 2012, section II, without line search.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 8, "K": 10, "T": 60}
SMALL = {"B": 2, "K": 3, "T": 5}
DT, EFFORT, FINAL, STEP = 0.05, 0.1, 10.0, 0.5


def inputs(rng, B, K, T):
    return {"start": 0.5 * rng.standard_normal((B, 2), "f4")}


def recurra_program(backend, B, K, T):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (k, rounds), (t, steps)):
        start = rc.input(rc.f32[2], (b,))
        x, u = rc.like(rc.f32[2], (b, k, t)), rc.like(rc.f32, (b, k, t))
        push, gain = rc.like(rc.f32, (b, k, t)), rc.like(rc.f32[2], (b, k, t))
        slope, curve = rc.like(rc.f32[2], (b, k, t)), rc.like(rc.f32[2, 2], (b, k, t))

        # forwards, with the feedback that the round before has found
        x[b, k, 0] = start
        angle, speed = x.index(0), x.index(1)
        x[b, k, t + 1] = rc.stack([angle + DT * speed, speed + DT * (u + angle.sin())])
        u[b, 0, t] = 0.0
        last = x - x[b, k - 1, t]
        u[b, k, t] = u[b, k - 1, t] + STEP * push[b, k - 1, t] + gain[b, k - 1, t] @ last

        # backwards: value is slope·x + x·curve·x / 2 around the trajectory
        one = 0.0 * angle + 1.0
        A = rc.stack([rc.stack([one, DT * one]), rc.stack([DT * angle.cos(), one])])
        slope[b, k, steps - 1] = FINAL * x[b, k, steps - 1]
        curve[b, k, steps - 1] = FINAL * rc.constant([[1.0, 0.0], [0.0, 1.0]])
        after, bend = slope[b, k, t + 1], curve[b, k, t + 1]
        Qx, Qu = DT * x + after @ A, DT * EFFORT * u + DT * after.index(1)
        Qxx = DT * rc.constant([[1.0, 0.0], [0.0, 1.0]]) + A.T @ bend @ A
        Quu = DT * EFFORT + DT * DT * bend.index(1).index(1)
        Qux = DT * (bend.index(1) @ A)
        push[b, k, t] = -Qu / Quu
        gain[b, k, t] = -Qux / Quu
        slope[b, k, t] = Qx - Qux * Qu / Quu
        curve[b, k, t] = Qxx - Qux.outer(Qux) / Quu

        cost = 0.5 * DT * (x.square().sum() + EFFORT * u.square())
        total = cost[b, k, 0 : steps - 1].sum() + 0.5 * FINAL * x[b, k, steps - 1].square().sum()
        rc.output(total=total, x=x[b, rounds - 1, t])
    return ctx.compile({rows: B, rounds: K, steps: T}, backend=backend)


def by_hand(B, K, T):
    eye = jnp.eye(2)

    def forward(start, xs, us, push, gain):
        def step(x, now):
            old, u, push, gain = now
            u = u + STEP * push + gain @ (x - old)
            new = jnp.stack([x[0] + DT * x[1], x[1] + DT * (u + jnp.sin(x[0]))])
            return new, (x, u)

        last, (new, us) = jax.lax.scan(step, start, (xs[:-1], us, push, gain))
        return jnp.concatenate([new, last[None]]), us

    def backward(xs, us):
        def step(carry, now):
            after, bend = carry
            x, u = now
            A = jnp.array([[1.0, DT], [0.0, 1.0]]).at[1, 0].set(DT * jnp.cos(x[0]))
            Qx, Qu = DT * x + after @ A, DT * EFFORT * u + DT * after[1]
            Qxx, Quu = DT * eye + A.T @ bend @ A, DT * EFFORT + DT * DT * bend[1, 1]
            Qux = DT * (bend[1] @ A)
            carry = Qx - Qux * Qu / Quu, Qxx - jnp.outer(Qux, Qux) / Quu
            return carry, (-Qu / Quu, -Qux / Quu)

        start = FINAL * xs[-1], FINAL * eye
        return jax.lax.scan(step, start, (xs[:-1], us), reverse=True)[1]

    def optimize(start):
        def improve(carry, k):
            xs, us, push, gain = carry
            xs, us = forward(start, xs, us, push, gain)
            cost = 0.5 * DT * (jnp.square(xs[:-1]).sum() + EFFORT * jnp.square(us).sum())
            return (xs, us, *backward(xs, us)), cost + 0.5 * FINAL * jnp.square(xs[-1]).sum()

        first = jnp.zeros((T, 2)), jnp.zeros(T - 1), jnp.zeros(T - 1), jnp.zeros((T - 1, 2))
        (xs, *_), total = jax.lax.scan(improve, first, jnp.arange(K))
        return {"total": total, "x": xs}

    return jax.jit(lambda start: jax.vmap(optimize)(start))
