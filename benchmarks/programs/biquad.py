"""A cascade of second-order filters over a batch of signals.

Oppenheim and Schafer, Discrete-Time Signal Processing, section 6.3 (direct form I, cascade).
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 32, "S": 4, "T": 512}
SMALL = {"B": 2, "S": 3, "T": 7}


def inputs(rng, B, S, T):
    radius, angle = rng.uniform(0.3, 0.9, S), rng.uniform(0.2, 3.0, S)
    return {
        "signal": rng.standard_normal((B, T), "f4"),
        "num": rng.standard_normal((S, 3), "f4"),
        "den": np.stack([-2.0 * radius * np.cos(angle), radius**2], axis=1).astype("f4"),
    }


def recurra_program(backend, B, S, T):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (s, sections), (t, steps)):
        signal = rc.input(rc.f32, (b, t))
        num, den = rc.input(rc.f32[3], (s,)), rc.input(rc.f32[2], (s,))
        x, y = rc.like(rc.f32, (b, s, t)), rc.like(rc.f32, (b, s, t))
        x[b, 0, t] = signal
        x[b, s, t] = y[b, s - 1, t]

        def past(z, k):
            return rc.where(t >= k, z[b, s, t - k], 0.0)

        moving = num[s][0] * x + num[s][1] * past(x, 1) + num[s][2] * past(x, 2)
        y[b, s, t] = moving - den[s][0] * past(y, 1) - den[s][1] * past(y, 2)
        rc.output(y=y[b, sections - 1, t])
    return ctx.compile({rows: B, sections: S, steps: T}, backend=backend)


def by_hand(B, S, T):
    """All sections in one scan, in the transposed direct form II."""

    @jax.jit
    def cascade(signal, num, den):
        def step(state, x):
            new = []
            for s in range(S):
                first, second = state[s]
                y = num[s, 0] * x + first
                new.append((num[s, 1] * x - den[s, 0] * y + second, num[s, 2] * x - den[s, 1] * y))
                x = y
            return new, x

        zero = jnp.zeros(B)
        return {"y": jax.lax.scan(step, [(zero, zero)] * S, signal.T)[1].T}

    return cascade
