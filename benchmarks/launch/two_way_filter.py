"""Exponential smoothing forwards, then backwards, so that nothing is delayed (as `filtfilt`)."""

import jax

import recurra as rc

SIZES = {"B": 8, "T": 32}
SMALL = {"B": 2, "T": 4}
KEPT = 0.8


def inputs(rng, B, T):
    return {"x": rng.standard_normal((B, T), "f4")}


def recurra_program(backend, B, T):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x = rc.input(rc.f32, (b, t))
        forward, smooth = rc.like(rc.f32, (b, t)), rc.like(rc.f32, (b, t))
        forward[b, 0] = x[b, 0]
        forward[b, t] = KEPT * forward[b, t - 1] + (1.0 - KEPT) * x
        smooth[b, steps - 1] = forward[b, steps - 1]
        smooth[b, t] = KEPT * smooth[b, t + 1] + (1.0 - KEPT) * forward
        rc.output(smooth=smooth)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T):
    def step(h, x):
        h = KEPT * h + (1.0 - KEPT) * x
        return h, h

    @jax.jit
    def smooth(x):
        forward = jax.lax.scan(step, x[:, 0], x.T)[1]
        return {"smooth": jax.lax.scan(step, forward[T - 1], forward, reverse=True)[1].T}

    return smooth


def by_hand_eager(xp, B, T):
    def smooth(x):
        y = xp.empty((B, T), dtype=xp.float32)
        h = x[:, 0]
        for t in range(T):
            y[:, t] = h = KEPT * h + (1.0 - KEPT) * x[:, t]
        h = y[:, T - 1]
        for t in reversed(range(T)):
            y[:, t] = h = KEPT * h + (1.0 - KEPT) * y[:, t]
        return {"smooth": y}

    return smooth
