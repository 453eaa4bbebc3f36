"""Retention in its recurrent form, with a decay for each head, and the gradient of its weights.

Sun et al., Retentive Network: A Successor to Transformer for Large Language Models, 2023,
equation 6 and section 2.2 (the decays).
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 8, "H": 4, "T": 64, "E": 32, "D": 16}
SMALL = {"B": 2, "H": 2, "T": 5, "E": 4, "D": 3}


def inputs(rng, B, H, T, E, D):
    def weight():
        return rng.standard_normal((H, E, D), "f4") / np.float32(E**0.5)

    return {
        "x": rng.standard_normal((B, T, E), "f4"),
        "y": rng.standard_normal((B, H, T, D), "f4"),
        "wq": weight(),
        "wk": weight(),
        "wv": weight(),
    }


def recurra_program(backend, B, H, T, E, D):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (h, heads), (t, steps)):
        x, y = rc.input(rc.f32[E], (b, t)), rc.input(rc.f32[D], (b, h, t))
        wq, wk, wv = (rc.input(rc.f32[E, D], (h,), name=n) for n in ("wq", "wk", "wv"))
        gamma = 1.0 - 2.0 ** (-5.0 - h)
        q, k, v = x @ wq, x @ wk / D**0.5, x @ wv
        S = rc.like(rc.f32[D, D], (b, h, t))
        S[b, h, 0] = k.outer(v)
        S[b, h, t] = gamma * S[b, h, t - 1] + k.outer(v)
        o = q @ S
        loss = (o - y).square().mean()[0:rows, 0:heads, 0:steps].mean()
        loss.backward(wrt=[wq, wk, wv])
        rc.output(loss=loss, d_wq=wq.grad, d_wk=wk.grad, d_wv=wv.grad)
    return ctx.compile({rows: B, heads: H, steps: T}, backend=backend)


def by_hand(B, H, T, E, D):
    """In the parallel form: (Q Kᵀ ⊙ decay) V."""
    gamma = 1.0 - 2.0 ** (-5.0 - np.arange(H))
    age = np.arange(T)[:, None] - np.arange(T)
    decay = np.where(age >= 0, gamma[:, None, None] ** np.maximum(age, 0), 0.0).astype("f4")

    def loss(weights, x, y):
        wq, wk, wv = weights
        q, k, v = (jnp.einsum("bte,hed->bhtd", x, w) for w in (wq, wk, wv))
        scores = jnp.einsum("bhtd,bhsd->bhts", q, k) * (decay / D**0.5)
        return jnp.square(jnp.einsum("bhts,bhsd->bhtd", scores, v) - y).mean()

    @jax.jit
    def value_and_gradient(x, y, wq, wk, wv):
        value, slopes = jax.value_and_grad(loss)((wq, wk, wv), x, y)
        return dict(zip(("loss", "d_wq", "d_wk", "d_wv"), (value, *slopes), strict=True))

    return value_and_gradient
