"""Samples of a diffusion model, by ancestral sampling with a network of two layers.

Ho, Jain and Abbeel, 2020, algorithm 2; the noise is given, so that both forms have the same.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 64, "T": 100, "D": 8, "H": 32}
SMALL = {"B": 2, "T": 4, "D": 2, "H": 3}


def inputs(rng, B, T, D, H):
    shapes = {"noise": (B, T, D), "start": (B, D), "W": (D, H), "when": (T, H), "V": (H, D)}
    made = {name: rng.standard_normal(shape, "f4") for name, shape in shapes.items()}
    return made | {"W": made["W"] / D**0.5, "V": made["V"] / H**0.5}


def recurra_program(backend, B, T, D, H):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        noise, start = rc.input(rc.f32[D], (b, t)), rc.input(rc.f32[D], (b,))
        W, when, V = rc.input(rc.f32[D, H]), rc.input(rc.f32[H], (t,)), rc.input(rc.f32[H, D])
        beta = 1e-4 + (0.02 - 1e-4) * rc.value(t) / (T - 1)
        kept = rc.like(rc.f32, (t,))  # ᾱ
        kept[0] = 1.0 - beta
        kept[t] = kept[t - 1] * (1.0 - beta)

        x = rc.like(rc.f32[D], (b, t))
        x[b, steps - 1] = start
        guess = (x @ W + when).tanh() @ V
        mean = (x - beta / (1.0 - kept).sqrt() * guess) / (1.0 - beta).sqrt()
        x[b, t - 1] = mean + beta.sqrt() * noise
        rc.output(sample=mean[b, 0])
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, D, H):
    beta = np.linspace(1e-4, 0.02, T)
    scale = beta / np.sqrt(1.0 - np.cumprod(1.0 - beta))
    tables = [jnp.asarray(x, "f4") for x in (scale, 1.0 / np.sqrt(1.0 - beta), np.sqrt(beta))]

    @jax.jit
    def sample(noise, start, W, when, V):
        def step(x, now):
            scale, grow, spread, when, noise = now
            mean = (x - scale * (jnp.tanh(x @ W + when) @ V)) * grow
            return mean + spread * noise, mean

        now = (*tables, when, jnp.swapaxes(noise, 0, 1))
        last, _ = jax.lax.scan(step, start, [x[1:] for x in now], reverse=True)
        return {"sample": step(last, [x[0] for x in now])[1]}

    return sample
