"""Shuffles: every place once, all places alike, the same on every backend."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from recurra.errors import ShapeError
from recurra.ops.permutation import MAX_OUTSIDE, Permutation, box


def shuffle(n: int, key: int, seed: int = 7) -> np.ndarray:
    from recurra.ir.expr import SEED, Sym

    op = Permutation(id=3, size=n, at_=Sym("k"), key=(Sym("i"),), bind=(("k", n, 0),))
    return np.asarray(op.run(np, {SEED: seed, "i": key}))


@pytest.mark.parametrize("n", [*range(1, 70), 97, 1000, 1009, 4096, 12_800, 99_991])
def test_every_place_once(n: int) -> None:
    assert np.array_equal(np.sort(shuffle(n, 1)), np.arange(n))
    a, b = box(n)
    assert n <= a * b <= n + MAX_OUTSIDE


def test_each_key_and_seed_shuffles_anew() -> None:
    first = shuffle(1000, 1)
    for other in (shuffle(1000, 2), shuffle(1000, 1, seed=8), np.arange(1000)):
        assert (first == other).mean() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("n", [7, 12, 60])
def test_all_places_alike(n: int) -> None:
    """χ² of where each element goes, over many keys: below its 0.9999 quantile."""
    from scipy.stats import chi2

    draws = 3000
    counts = np.zeros((n, n))
    for key in range(draws):
        counts[np.arange(n), shuffle(n, key)] += 1
    expected = draws / n
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi2.ppf(0.9999, (n - 1) ** 2)


def minibatches() -> tuple[rc.Context, dict]:
    ctx = rc.Context(dims="b e m n t")
    with ctx as ((b, B), (e, E), (m, M), (n, N), (t, T)):
        x = rc.value(b) * 100.0 + rc.value(t)
        k = rc.permutation(B * T, at=m * N + n, domain=(e,))
        rc.output(seen=rc.rl.rows(x, k, over=(b, t)))
    return ctx, {B: 3, T: 8, E: 2, M: 4, N: 6}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_minibatches_have_every_sample_once(backend: str) -> None:
    ctx, bounds = minibatches()
    seen = ctx.run(bounds, seed=3, backend=backend)["seen"]
    assert seen.shape == (2, 4, 6)
    want = np.sort([100.0 * b + t for b in range(3) for t in range(8)])
    for epoch in seen:
        assert np.array_equal(np.sort(epoch.ravel()), want)
    assert not np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen, ctx.run(bounds, seed=3, backend="numpy")["seen"])


def test_more_samples_than_there_are_is_refused() -> None:
    ctx, bounds = minibatches()
    (n,) = [b for b in bounds if str(b) == "N"]
    with pytest.raises(ShapeError) as error:
        ctx.compile({**bounds, n: 7})
    assert "not among the B*T that are shuffled" in str(error.value)
    assert "element 24 is asked of 24" in str(error.value)
