"""A small program whose compiled form is kept on disk, and what compiles it in a new process."""

from __future__ import annotations

from typing import Any

import numpy as np

import recurra as rc


def program(by: float = 0.5, scale: float = 1.0, **options: Any) -> Any:
    """A carried parameter, a function of JAX with a constant, data, and a sum over steps."""
    import jax.numpy as jnp

    table = jnp.array([1.0, 2.0]) * scale
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        w = rc.like(rc.f32[2], domain=(i,), name="w")
        w[0] = rc.constant(np.array([1.0, -1.0]) * by)
        x = rc.jax_fn(lambda u: jnp.sin(u * table), "waves")(rc.uniform((i, t), (2,)))
        w[i + 1] = w * 0.5 + x[i, 0:T].sum(axis=0)
        rc.log(norm=w.square().sum())
    return ctx.compile({I: 12, T: 5}, **options)


STARTS = """
import cached_program
print(cached_program.program().run(seed=3)["norm"].tolist())
"""
