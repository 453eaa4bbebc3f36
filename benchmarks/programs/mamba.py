"""A selective state-space layer: how fast its state forgets depends on the data.

Gu and Dao, Mamba, 2023, algorithm 2.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 4, "T": 128, "D": 32, "S": 8}
SMALL = {"B": 2, "T": 4, "D": 3, "S": 2}


def inputs(rng, B, T, D, S):
    shapes = {"x": (B, T, D), "to_delta": (D, D), "to_b": (D, S), "to_c": (D, S)}
    made = {name: rng.standard_normal(shape, "f4") / D**0.5 for name, shape in shapes.items()}
    return made | {"log_a": rng.standard_normal((D, S), "f4")}


def layer(x, to_delta, to_b, to_c, log_a, D, S, b, t):
    """The outputs, f32[D] over (b, t)."""
    delta = (1.0 + (x @ to_delta).exp()).log()
    forget = (-delta.reshape(D, 1) * log_a.exp()).exp()
    write = (delta * x).outer(x @ to_b)
    h = rc.like(rc.f32[D, S], (b, t))
    h[b, 0] = write[b, 0]
    h[b, t] = forget * h[b, t - 1] + write
    return h @ (x @ to_c)


def recurra_program(backend, B, T, D, S):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x, log_a = rc.input(rc.f32[D], (b, t)), rc.input(rc.f32[D, S])
        to_delta, to_b, to_c = (
            rc.input(rc.f32[D, D]),
            rc.input(rc.f32[D, S]),
            rc.input(rc.f32[D, S]),
        )
        rc.output(y=layer(x, to_delta, to_b, to_c, log_a, D, S, b, t))
    return ctx.compile({rows: B, steps: T}, backend=backend)


def outputs(x, to_delta, to_b, to_c, log_a):
    """The outputs [T, B, D] of x [B, T, D]; the products stand before the scan."""
    u = jnp.swapaxes(x, 0, 1)
    delta, write, read = jax.nn.softplus(u @ to_delta), u @ to_b, u @ to_c
    a = -jnp.exp(log_a)

    def step(h, now):
        delta, scaled, write, read = now
        h = jnp.exp(delta[:, :, None] * a) * h + scaled[:, :, None] * write[:, None]
        return h, jnp.einsum("bds,bs->bd", h, read)

    start = jnp.zeros((x.shape[0], *log_a.shape))
    return jax.lax.scan(step, start, (delta, delta * u, write, read))[1]


def by_hand(B, T, D, S):
    @jax.jit
    def forward(x, **weights):
        return {"y": jnp.swapaxes(outputs(x, **weights), 0, 1)}

    return forward
