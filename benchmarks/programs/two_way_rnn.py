"""Recurrent networks forwards and backwards in time, joined at every step, and their gradient.

Schuster and Paliwal, Bidirectional Recurrent Neural Networks, 1997, section II.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 32, "T": 60, "N": 16, "H": 32}
SMALL = {"B": 2, "T": 4, "N": 2, "H": 3}
NAMES = ("W", "U", "V", "R", "out")


def inputs(rng, B, T, N, H):
    shapes = {"x": (B, T, N), "y": (B, T), "W": (N, H), "U": (H, H), "V": (N, H), "R": (H, H)}
    shapes["out"] = (2 * H,)
    made = {name: rng.standard_normal(shape, "f4") for name, shape in shapes.items()}
    return made | {name: made[name] / H**0.5 for name in NAMES}


def recurra_program(backend, B, T, N, H):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x, y = rc.input(rc.f32[N], (b, t)), rc.input(rc.f32, (b, t))
        W, U, V, R = (
            rc.input(rc.f32[shape], name=name)
            for name, shape in {"W": (N, H), "U": (H, H), "V": (N, H), "R": (H, H)}.items()
        )
        out = rc.input(rc.f32[2 * H])
        forth, back = rc.like(rc.f32[H], (b, t)), rc.like(rc.f32[H], (b, t))
        forth[b, 0] = (x @ W).tanh()
        forth[b, t] = (x @ W + forth[b, t - 1] @ U).tanh()
        back[b, steps - 1] = (x @ V).tanh()
        back[b, t] = (x @ V + back[b, t + 1] @ R).tanh()
        error = rc.concat([forth, back]) @ out - y
        loss = error.square()[0:rows, 0:steps].mean()
        loss.backward(wrt=[W, U, V, R, out])
        rc.output(loss=loss, d_W=W.grad, d_U=U.grad, d_V=V.grad, d_R=R.grad, d_out=out.grad)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, N, H):
    def run(given, recurrent, reverse):
        def step(h, now):
            h = jnp.tanh(now + h @ recurrent)
            return h, h

        return jax.lax.scan(step, jnp.zeros((B, H)), given, reverse=reverse)[1]

    def loss(parameters, x, y):
        W, U, V, R, out = parameters
        forth, back = run(x @ W, U, False), run(x @ V, R, True)
        return jnp.square(jnp.concatenate([forth, back], axis=2) @ out - y).mean()

    @jax.jit
    def value_and_gradient(x, y, **weights):
        given = jnp.swapaxes(x, 0, 1), y.T
        value, slopes = jax.value_and_grad(loss)([weights[k] for k in NAMES], *given)
        return {"loss": value} | {f"d_{k}": g for k, g in zip(NAMES, slopes, strict=True)}

    return value_and_gradient
