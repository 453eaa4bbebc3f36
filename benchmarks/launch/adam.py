"""One step of Adam (Kingma and Ba, 2015) for four parameters: sixteen arrays in, twelve out."""

import jax
import jax.numpy as jnp

import recurra as rc

SHAPES = ((4, 16), (16,), (16, 2), (2,))
SIZES = SMALL = {}
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def inputs(rng):
    made = {}
    for k, shape in enumerate(SHAPES):
        for kind in "pgmv":
            x = rng.standard_normal(shape, "f4")
            made[f"{kind}{k}"] = x * x if kind == "v" else x
    return made


def recurra_program(backend):
    ctx = rc.Context(num_dims=0)
    with ctx:
        for k, shape in enumerate(SHAPES):
            p, g, m, v = (rc.input(rc.f32[shape], name=f"{kind}{k}") for kind in "pgmv")
            m = BETA1 * m + (1.0 - BETA1) * g
            v = BETA2 * v + (1.0 - BETA2) * g * g
            p = p - RATE * m / (v.sqrt() + EPSILON)
            rc.output(**{f"new_p{k}": p, f"new_m{k}": m, f"new_v{k}": v})
    return ctx.compile({}, backend=backend)


def step(xp, given):
    """The moments and parameters that follow, by name."""
    made = {}
    for k in range(len(SHAPES)):
        p, g, m, v = (given[f"{kind}{k}"] for kind in "pgmv")
        m = BETA1 * m + (1.0 - BETA1) * g
        v = BETA2 * v + (1.0 - BETA2) * g * g
        p = p - RATE * m / (xp.sqrt(v) + EPSILON)
        made |= {f"new_p{k}": p, f"new_m{k}": m, f"new_v{k}": v}
    return made


def by_hand():
    return jax.jit(lambda **given: step(jnp, given))


def by_hand_eager(xp):
    return lambda **given: step(xp, given)
