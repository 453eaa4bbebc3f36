"""A selective state-space model (Gu and Dao, 2023): how fast the state forgets depends on the data.

h[t] = exp(-Δ[t] a) h[t-1] + Δ[t] u[t] b[t],   y[t] = c[t]·h[t]; h is [channels, states]

python examples/state_space.py
"""

import numpy as np

import recurra as rc

CHANNELS, STATES = 4, 8
rng = np.random.default_rng(0)

ctx = rc.Context(num_dims=2)
with ctx as ((b, B), (t, T)):
    u = rc.normal((b, t), (CHANNELS,))
    a = rc.constant(np.arange(1.0, STATES + 1.0))
    to_b, to_c = (rc.constant(rng.normal(size=(CHANNELS, STATES)) / 2) for _ in range(2))
    to_delta = rc.constant(rng.normal(size=(CHANNELS, CHANNELS)) / 2)

    delta = (1.0 + (u @ to_delta).exp()).log()
    forget = (-rc.einsum("c,s->cs", delta, a)).exp()
    write = rc.einsum("c,s->cs", delta * u, u @ to_b)

    h = rc.like(rc.f32[CHANNELS, STATES], domain=(b, t))
    h[b, 0] = write[b, 0]
    h[b, t] = forget * h[b, t - 1] + write
    y = rc.einsum("cs,s->c", h, u @ to_c)
    rc.output(u=u, y=y)

if __name__ == "__main__":
    program = ctx.compile({B: 8, T: 500})
    print(program.run()["y"][0, -1])
    print(program)
