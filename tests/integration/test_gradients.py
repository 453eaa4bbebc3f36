"""Gradients of the compiled program are those of a scan of JAX, whatever was tiled or kept."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

from reinforce import GRADIENTS, SEED, by_autodiff, reinforce

B, T = 6, 24
ROWS = [1, 12, 48, 512]  # tiles of 1, 2, 8 and all 24 steps
TRAJECTORY = ("o", "a", "r")


@cache
def results(n: int | None = None, **options: object) -> dict[str, np.ndarray]:
    """Everything that the first iteration makes, in float64."""
    with jax.enable_x64(True):
        p = reinforce(B, T, 1, n, "f64", (*GRADIENTS, *TRAJECTORY), **options)
        return p.run(seed=SEED)


def error(got: dict[str, np.ndarray], n: int | None = None) -> float:
    """The largest error of a gradient, relative to its largest element."""
    length, want = by_autodiff(B, T, n)
    assert length < T, "some episode has to end"
    assert got["length"][0] == pytest.approx(length, rel=1e-14)
    return max(abs(got[k][0] - x).max() / abs(x).max() for k, x in want.items())


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", ["jax", "numpy", "torch"])
@pytest.mark.parametrize("last", [False, True])
def test_gradient_is_that_of_a_scan_of_jax(last: bool, backend: str):
    assert error(results(batch_last=last, backend=backend)) < 1e-13


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", ["jax", "numpy", "torch"])
@pytest.mark.parametrize("n", [1, 3, 5, 30])
def test_gradient_of_n_steps(n: int, backend: str):
    """Windows are cut short at the end of time, and shorter than n where n > T."""
    assert error(results(n, backend=backend), n) < 1e-13


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_tiles_change_the_order_of_a_sum_and_nothing_else():
    whole = results()
    for rows in ROWS[:-1]:
        got = results(tile_rows=rows)
        assert error(got) < 1e-13
        for name in TRAJECTORY:
            np.testing.assert_array_equal(got[name], whole[name])


def test_the_tiles_asked_for_are_the_tiles_made():
    programs = [reinforce(B, T, 1, shown=(*GRADIENTS,), tile_rows=rows) for rows in ROWS]
    made = [p.compiled.stages.decisions for p in programs]
    sizes = [[d for d in decisions if "tiles of" in d] for decisions in made]
    assert [d[0].split(" for")[0] if d else "" for d in sizes] == [
        "",
        "t: tiles of 2",
        "t: tiles of 8",
        "t: tiles of 24",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_kept_or_computed_again_the_gradient_is_the_same():
    """A held byte that costs nothing keeps every layer, one beyond price only what was drawn."""
    stored: list[str] = []
    for held in (0.0, 1e4):
        p = reinforce(B, T, 1, shown=(*GRADIENTS,), memory_price=held)
        stored += [d for d in p.compiled.stages.decisions if "tanh" in d]
        assert error(results(memory_price=held)) < 1e-13
    kept, again = stored
    assert "tanh" in kept.split("again")[0]
    assert "tanh" in again.split("again")[1]


@pytest.mark.slow
def test_a_wrong_gradient_is_seen():
    got = results()
    assert error(got | {"d_W2": got["d_W2"] * (1 + 1e-9)}) > 1e-10
