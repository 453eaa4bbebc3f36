"""Tables on their diagonals: the cells are what they are one by one."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from fuzzing import each, seeded_at_length
from random_tables import write
from recurra.reference import interpreter

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])


def by_backend(seed: int, backend: str) -> bool:
    """Has the program of a seed a table, and is it right?"""
    ctx, bounds = write(seed)
    program = ctx.compile(bounds, backend=backend, min_skew_gain=0.0)
    want = interpreter.run(program.source_graph, program.sizes, seed=1)
    got = program.run(seed=1)
    for name, x in got.items():
        np.testing.assert_allclose(
            x, want[program.logs[name]], rtol=2e-4, atol=2e-5, err_msg=f"{name} of seed {seed}"
        )
    return "skew" in program.compiled.stages.graphs


@pytest.mark.slow
def test_random_tables() -> None:
    """Many of them are large enough for a diagonal, and read at more than their edges."""
    assert sum(by_backend(seed, "numpy") for seed in range(40)) > 8


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("seed", range(100, 103))
def test_random_tables_compiled(seed: int, backend: str) -> None:
    by_backend(seed, backend)


@seeded_at_length(0.2)
@BACKENDS
def test_random_tables_long(seeds: range, backend: str) -> None:
    each(seeds, lambda seed: by_backend(seed, backend))


def longest(pairs: tuple[int, int], bounds: tuple[int, int, int], **options: float):
    """A table in which each cell takes the better of two neighbors."""
    ctx = rc.Context(dims="b s t")
    with ctx as ((b, B), (s, S), (t, T)):
        e = rc.uniform((b, s, t))
        d = rc.like(rc.f32, domain=(b, s, t))
        (i, j) = pairs
        inside = (s >= max(i, 0)) & (t >= max(j, 0)) & (s < S + min(i, 0)) & (t < T + min(j, 0))
        back = (s >= max(j, 0)) & (t >= max(i, 0)) & (s < S + min(j, 0)) & (t < T + min(i, 0))
        d[inside & back] = rc.maximum(d[b, s - i, t - j], d[b, s - j, t - i]) + e
        d[b, s, t] = e
        rc.output(d=d)
    return ctx.compile(dict(zip((B, S, T), bounds, strict=True)), backend="numpy", **options)


@pytest.mark.parametrize(
    ("bounds", "diagonal"), [((1, 60, 70), True), ((4, 20, 30), True), ((300, 20, 30), False)]
)
def test_long_diagonals_of_few_rows_pay(bounds: tuple[int, int, int], diagonal: bool) -> None:
    program = longest((1, 0), bounds)
    decisions = program.compiled.stages.decisions
    assert ("s, t: diagonals of S cells for 3 equations" in decisions) == diagonal
    assert ("for stw:" in str(program)) == diagonal
    never = longest((1, 0), bounds, min_skew_gain=float("inf"))
    assert "stw" not in str(never)
    np.testing.assert_array_equal(program.run()["d"], never.run()["d"])


def test_three_diagonals_are_stored() -> None:
    ctx = rc.Context(dims="s t")
    with ctx as ((s, S), (t, T)):
        e = rc.uniform((s,)) * rc.uniform((t,))
        d = rc.like(rc.f32, domain=(s, t))
        d[(s >= 1) & (t >= 1)] = rc.minimum(d[s - 1, t - 1], d[s - 1, t] + d[s, t - 1]) + e
        d[s, t] = e
        rc.output(last=d[S - 1, T - 1])
    rows = ctx.compile({S: 40, T: 50}, backend="numpy").store_rows
    (kept,) = [row for row in rows if row["store"] == "d_wave"]
    assert (kept["shape"], kept["kind"]) == ("3×40", "circular")


@pytest.mark.parametrize(
    ("bounds", "recurs"), [((2, 7, 6), True), ((1, 1, 1), False), ((2, 2, 5), False)]
)
def test_what_only_diagonals_order(bounds: tuple[int, int, int], recurs: bool) -> None:
    """Neighbors two down and one up: no loop over s or t has an order, whatever its direction.

    A small table has no such neighbors, so its cells are what they start from.
    """
    program = longest((2, -1), bounds)
    assert ("skew" in program.compiled.stages.graphs) == recurs
    want = interpreter.run(program.source_graph, program.sizes)
    for name, x in program.run().items():
        np.testing.assert_array_equal(x, want[program.logs[name]])


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@BACKENDS
def test_gradients_go_back_along_diagonals(backend: str) -> None:
    """Soft dynamic time warping (Cuturi and Blondel, 2017): one table there, one back."""
    ctx = rc.Context(dims="b s t")
    with ctx as ((b, B), (s, S), (t, T)):
        w = rc.constant(np.float32(0.8))
        e = (rc.uniform((b, s)) * w - rc.uniform((b, t))).square()
        d = rc.like(rc.f32, domain=(b, s, t))
        near = [d[b, s - 1, t - 1], d[b, s - 1, t], d[b, s, t - 1]]
        total = (-near[0]).exp() + (-near[1]).exp() + (-near[2]).exp()
        d[(s >= 1) & (t >= 1)] = e - total.log()
        d[b, s, t] = e * (s + t + 1.0)
        loss = d[0:B, S - 1, T - 1].sum()
        loss.backward(wrt=[w])
        rc.output(loss=loss, slope=w.grad)
    bounds = {B: 2, S: 5, T: 7}
    program = ctx.compile(bounds, backend=backend, min_skew_gain=0.0)
    fronts = [x for x in program.compiled.stages.decisions if "diagonals of S cells" in x]
    assert len(fronts) == 2
    want = interpreter.run(program.source_graph, program.sizes)
    for name, x in program.run().items():
        np.testing.assert_allclose(x, want[program.logs[name]], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@BACKENDS
def test_gradients_of_borders_go_back_along_diagonals(backend: str) -> None:
    """The first row and the first column have equations of their own, and all cells are summed."""
    ctx = rc.Context(dims="b s t")
    with ctx as ((b, B), (s, S), (t, T)):
        x = rc.input(rc.f32, (b, s))
        cost = (x - rc.uniform((b, t))).square()
        d = rc.like(rc.f32, (b, s, t))
        d[b, 0, 0] = cost
        d[b, 0, t] = d[b, 0, t - 1] * 0.5 + cost
        d[b, s, 0] = d[b, s - 1, 0] * 0.5 + cost
        d[b, s, t] = cost + (0.1 * d[b, s - 1, t]).sin() * d[b, s, t - 1] + d[b, s - 1, t - 1]
        loss = d[0:B, 0:S, 0:T].sum() + d[0:B, S - 1, T - 1].sum()
        loss.backward(wrt=[x])
        rc.output(loss=loss, d_x=x.grad, least=d[b, 0:S, 0:T].min())
    given = {"x": np.random.default_rng(1).standard_normal((2, 5)).astype("f4")}
    made = [
        ctx.compile({B: 2, S: 5, T: 6}, backend=backend, min_skew_gain=gain)
        for gain in (0.0, float("inf"))
    ]
    waves = [str(program).count("for stw") for program in made]
    assert waves == [2, 0]
    got, want = (program.run(inputs=given, seed=1) for program in made)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-4, atol=2e-5, err_msg=name)
