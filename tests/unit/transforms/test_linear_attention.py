"""Attention without softmax: states of one size, also back (Katharopoulos et al., 2020)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recurra as rc

B, WIDTH = 2, 3
rng = np.random.default_rng(0)
WEIGHTS = [(rng.normal(size=(WIDTH, WIDTH)) / 2).astype(np.float32) for _ in range(3)]


def program(steps: int, backend: str, normalized: bool = True) -> Any:
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, _B), (t, T)):
        x = rc.input(rc.f32[WIDTH], (b, t), name="x")
        weights = [rc.constant(w) for w in WEIGHTS]
        q, k, v = (x @ w for w in weights)
        q, k = q.exp(), k.exp()
        w = rc.einsum("d,nd->n", q, k[b, 0 : t + 1])
        y = rc.einsum("n,ne->e", w, v[b, 0 : t + 1])
        y = y / w.sum() if normalized else y
        loss = y.sin().sum()[0:_B, 0:T].sum()
        loss.backward(wrt=weights)
        rc.output(loss=loss, **{f"d{k}": w.grad for k, w in enumerate(weights)})
    return ctx.compile({_B: B, T: steps}, backend=backend)


def by_jax(x: np.ndarray, normalized: bool) -> Any:
    def loss(weights: Any) -> Any:
        q, k, v = (jnp.einsum("bti,ij->btj", x, w) for w in weights)
        w = jnp.tril(jnp.einsum("btd,bnd->btn", jnp.exp(q), jnp.exp(k)))
        y = jnp.einsum("btn,bne->bte", w, v)
        return jnp.sin(y / w.sum(axis=2, keepdims=True) if normalized else y).sum()

    return jax.value_and_grad(loss)([jnp.asarray(w) for w in WEIGHTS])


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_gradients_are_those_of_all_pairs(backend: str, normalized: bool) -> None:
    x = np.random.default_rng(1).normal(size=(B, 7, WIDTH)).astype(np.float32)
    loss, slopes = by_jax(x, normalized)
    got = program(7, backend, normalized).run(inputs={"x": x})
    np.testing.assert_allclose(got["loss"], loss, rtol=1e-5)
    for k, want in enumerate(slopes):
        most = float(np.abs(want).max())
        np.testing.assert_allclose(got[f"d{k}"], want, rtol=1e-4, atol=1e-5 * most)


def test_nothing_is_kept_of_pairs_of_steps() -> None:
    """What learning keeps is a few vectors of every step; states are of one size."""

    def kept(steps: int) -> dict[str, int]:
        rows = program(steps, "numpy").store_rows
        return {row["store"]: row["bytes"] for row in rows}

    short, long = kept(40), kept(80)
    assert short.keys() == long.keys()
    assert {long[n] / short[n] for n in long} <= {1.0, 2.0}
    assert sum(long.values()) < 80 * B * 4 * 10 * WIDTH
