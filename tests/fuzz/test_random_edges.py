"""Programs as users write them, at their edges, give what the interpreter gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS
from fuzzing import each, seeded_at_length
from random_edges import Edge, check, compare
from recurra.storage.offload import Offload
from recurra.transforms.vectorize import transpose_inputs

OFFLOADED = {"offload": Offload("host", least=0, room=2)}


def one_step_of_the_host(x: Any, b: Any, B: Any, t: Any, T: Any) -> None:
    """A loop of one step on the host, of what the step before would have left."""
    y = rc.like(rc.f32[3], (b, t))
    y[b, t % 2 == 0] = x[b, rc.max(t - 1, 0)]
    y[b, t] = (0.5 * y[b, t - 1] + x[b, rc.min(t + 2, T - 1)]).tanh()
    z = rc.like(rc.f32[3], (b, t))
    z[b, T - 1] = y[B - 1 - b, t]
    z[b, t] = (0.5 * z[b, t + 1] + y[b, rc.min(t + 1, T - 1)]).tanh()
    rc.output(y=z)


def loops_turned_over(x: Any, b: Any, B: Any, t: Any, T: Any) -> None:
    """What a loop in a turned one puts out is that of all steps, not of the last."""
    y = rc.like(rc.f32[3], (b, t))
    y[b, T - 1] = x
    y[b, t] = (y[b, t + 1] * 0.5 + x).tanh()
    rc.output(s=(y[b, 0:T].max(axis=0) - y)[0:B, 0:T].sum(), z=x.roll(1, axis=0))


def a_call_read_once(x: Any, b: Any, B: Any, t: Any, T: Any) -> None:
    """A call with effects is made at every step, where its results are taken; one is read."""
    y = rc.call(lambda x: np.sin(x), rc.f32[3], x, batch=(b,))
    rc.output(y=y[b, rc.min(1, T - 1)] * 2.0)


WENT_WRONG: list[tuple[Callable[..., None], int, int, dict[str, Any]]] = [
    (one_step_of_the_host, 1, 1, {"tile_rows": 4, "launch_steps": 1, **OFFLOADED}),
    (loops_turned_over, 8, 8, {"vectorized": False, **OFFLOADED}),
    (a_call_read_once, 2, 2, {}),
]


@pytest.mark.parametrize(("write", "rows", "steps", "options"), WENT_WRONG)
@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_that_went_wrong(
    write: Callable[..., None], rows: int, steps: int, options: dict[str, Any], backend: str
) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        write(rc.input(rc.f32[3], (b, t), name="x"), b, B, t, T)
    given = np.random.default_rng(rows).normal(size=(rows, steps, 3)).astype(np.float32)
    check(Edge(ctx, {B: rows, T: steps}, {"x": given}, options), backend)


@pytest.mark.parametrize(
    "seed", [408, 429, 643, 751, pytest.param(33002000011, marks=pytest.mark.slow)]
)
def test_drawn_programs_that_went_wrong(seed: int) -> None:
    """Calls of the host in loops that were turned outwards, a branch that is not taken yet, and
    independent points whose axes grow along another dim."""
    compare(seed, "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 10):
        compare(seed, "numpy")


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.usefixtures("hasty_xla")
def test_random_programs_on_backends(backend: str) -> None:
    for seed in range(60, 66):
        compare(seed, backend)


@seeded_at_length()
def test_many_random_programs(seeds: range) -> None:
    each(seeds, lambda seed: compare(seed, "numpy"))


@seeded_at_length(0.1)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_many_random_programs_on_backends(seeds: range, backend: str) -> None:
    each(seeds, lambda seed: compare(seed, backend))


# ---- inputs that loops read across are turned, here however few their rows are


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transpose_inputs, "MIN_VECTOR_ROWS", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("first", range(100, 140, 10))
def test_turned_inputs(first: int) -> None:
    for seed in range(first, first + 10):
        compare(seed, "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.usefixtures("few_rows", "hasty_xla")
def test_turned_inputs_on_backends(backend: str) -> None:
    for seed in range(160, 164):
        compare(seed, backend)


@seeded_at_length()
@pytest.mark.usefixtures("few_rows")
def test_many_turned_inputs(seeds: range) -> None:
    each(seeds, lambda seed: compare(seed, "numpy"))
