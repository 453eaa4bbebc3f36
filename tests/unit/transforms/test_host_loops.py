"""Dims that the host counts, and dims in rounds: towers of layers, each with a past of its own."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest

import recurra as rc
from ended_rows import equal, seen
from fuzzing import each, seeded_at_length
from recurra.codegen.host_program import HostLoop
from recurra.reference import interpreter
from recurra.runtime.executable import Executable
from recurra.runtime.host_executor import Step

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
WIDTH, ROWS = 4, 2


@cache
def tower(
    backend: str,
    L: int = 4,
    T: int = 12,
    widths: tuple[int, ...] = (0, 3),
    ends: bool = False,
    **options: Any,
) -> Executable:
    """x[b, l+1, t] is made of a window of x[b, l] up to t, as wide as it is l's turn (0: of all).

    The first three points are given; the others follow from what came out of the last layer.
    """
    ctx = rc.Context(dims="b l t")
    with ctx as ((b, B), (l, L_), (t, T_)):
        given = rc.input(rc.f32[WIDTH], (b, t), name="given")
        w = rc.input(rc.f32[WIDTH, WIDTH], (l,), name="w")
        first = rc.like(rc.f32[WIDTH], domain=(b, t), name="first")
        x = rc.like(rc.f32[WIDTH], domain=(b, l, t), name="x")
        x[b, 0, t] = first
        k = rc.like(rc.f32[WIDTH], domain=(b, l, t), name="k")
        k[b, l, t] = (x @ w).tanh()
        y = rc.like(rc.f32[WIDTH], domain=(b, l, t), name="y")
        for turn, width in list(enumerate(widths))[1:]:
            y[b, l, t, l % len(widths) == turn] = attended(x, k[b, l, past(t, width)])
        y[b, l, t] = attended(x, k[b, l, past(t, widths[0])])
        x[b, l + 1, t] = x * 0.5 + y
        top = x[b, L_ - 1, t] + y[b, L_ - 1, t]
        first[b, t, t < 3] = given
        first[b, t] = top[b, t - 1].sin()
        rc.output(top=top)
        size: Any = rc.until(top.sum() > 1.0, from_=4, max=T) if ends else T
    return ctx.compile({B: ROWS, L_: L, T_: size}, backend=backend, **options)


def past(t: Any, width: int) -> slice:
    return slice(rc.max(t - (width - 1), 0) if width else 0, t + 1)


def attended(q: Any, k: Any) -> Any:
    """[WIDTH] of q [WIDTH] and k [n, WIDTH]."""
    return rc.einsum("n,nd->d", rc.einsum("d,nd->n", q, k).softmax(), k)


def inputs(L: int = 4, T: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    w = rng.normal(size=(L, WIDTH, WIDTH))
    return {"given": rng.normal(size=(ROWS, T, WIDTH)), "w": w}


def close(got: dict[str, Any], want: dict[str, Any]) -> None:
    np.testing.assert_allclose(got["top"], want["top"], rtol=1e-3, atol=1e-3)


def kinds(p: Executable, dim: str) -> dict[str, str]:
    """How stores lie along a dim."""
    plan = p.compiled.program.plan
    return {n: a.kind for n, s in plan.stores.items() for a in s.kept if a.dim == dim}


def check(backend: str, L: int, T: int, widths: tuple[int, ...], **options: Any) -> None:
    """By the oracle, of the equations as written."""
    p = tower(backend, L, T, widths, **options)
    given = inputs(L, T)
    want = interpreter.run(p.source_graph, p.sizes, given)
    close(p.run(inputs=given), {"top": want[p.logs["top"]]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("L", "widths"), [(4, (0, 3)), (5, (0, 3)), (7, (3, 0, 2)), (3, (3,)), (5, (3, 0, 0, 3))]
)
@pytest.mark.parametrize("counted", [(), ("l", "lr")])
def test_towers(L: int, widths: tuple[int, ...], counted: tuple[str, ...]) -> None:
    """Also with rounds that are not whole."""
    check("numpy", L, 12, widths, host_loops=counted)


@seeded_at_length(0.2)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_many_towers(seeds: range, backend: str) -> None:
    each(seeds, lambda seed: check_tower(seed, backend))


def check_tower(seed: int, backend: str) -> None:
    pick = random.Random(seed)
    L, T = pick.randint(1, 9), pick.randint(5, 24)
    widths = tuple(pick.choice([0, 0, 2, 3, 5]) for _ in range(pick.randint(1, 4)))
    counted = pick.choice([(), ("l",), ("l", "lr"), ("l", "lr")])
    more = {
        "launch_steps": pick.randint(1, 6),
        "min_peeled_points": pick.choice([2, 16]),
        "tile_points": pick.choice([3, 8]),
    }
    check(backend, L, T, widths, ends=pick.random() < 0.5, host_loops=counted, **more)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_backends(backend: str) -> None:
    want = tower("numpy", host_loops=()).run(inputs=inputs())
    for counted in ((), ("lr",)):
        close(tower(backend, host_loops=counted).run(inputs=inputs()), want)


def test_each_turn_has_its_own_store() -> None:
    p = tower("numpy")
    assert "l: in rounds of 2, each turn by equations of its own" in p.compiled.stages.decisions
    assert (kinds(p, "t")["k_0"], kinds(p, "t")["k_1"]) == ("tiled", "mirrored")
    stores = p.compiled.plan.stores
    assert [a.slots for n in ("k_0", "k_1") for a in stores[n].kept if a.dim == "t"] == [12, 3]


def test_what_is_kept_of_a_point_is_a_buffer_of_its_own() -> None:
    p = tower("numpy", host_loops=("lr",))
    assert kinds(p, "lr") == dict.fromkeys(("k_0", "k_1", "w_0", "w_1"), "per_point")
    loops = [x for x in p.compiled.program.items if isinstance(x, HostLoop)]
    assert loops
    text = p.execution.text
    assert "k_0_store[lr]" in text
    assert "w_1_store[lr]" in text
    assert "lr: 2, each apart" in str(p.compiled.program.plan)
    alone = tower("numpy", widths=(0,), host_loops=("l",))
    assert {"k", "w"} <= {n for n, kind in kinds(alone, "l").items() if kind == "per_point"}


def test_a_buffer_is_read_where_it_lies() -> None:
    """Inputs are not copied: a launch sees what the caller has."""
    p = tower("numpy", widths=(0,), host_loops=("l",))
    given = inputs()
    w = given["w"] = given["w"].astype(np.float32)
    steps = p.execution.steps(inputs=given)
    next(steps)
    before = p.run(inputs=given)["top"]
    w *= 0.5
    while True:
        try:
            next(steps)
        except StopIteration as end:
            after = end.value[p.outputs[p.logs["top"]]]
            break
    assert not np.allclose(np.sort(after, axis=None), np.sort(before, axis=None))


@pytest.mark.slow
@BACKENDS
def test_rows_that_the_data_end(backend: str) -> None:
    given = inputs(T=40)
    want = tower("numpy", T=40, ends=True, host_loops=()).run(inputs=given)
    made = (want["top"] != 0).any(axis=(0, 2))
    assert 4 < made.sum() < 40
    close(tower(backend, T=40, ends=True, host_loops=("lr",)).run(inputs=given), want)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_resumed_run_is_the_run_itself(backend: str) -> None:
    p = tower(backend, host_loops=("lr",))
    steps, want = seen(p, inputs=inputs())
    mine: list[Step] = [s for s in steps if s.variables]
    for s in mine[::4]:
        _, got = seen(p, inputs=inputs(), resume=(s.hi, s.variables))
        equal(got, {n: rest(x, got[n]) for n, x in want.items()})


def rest(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The last points of `whole`, as many as there are."""
    axis = next((k for k, n in enumerate(whole.shape) if n != part.shape[k]), 0)
    return np.moveaxis(np.moveaxis(whole, axis, 0)[-part.shape[axis] :], 0, axis)


def test_the_host_counts_where_cutting_costs_more() -> None:
    """By the bytes of an input that a point reads, against a launch."""

    def decided(width: int) -> str:
        ctx = rc.Context(dims="l t")
        with ctx as ((l, L), (t, T)):
            w = rc.input(rc.f32[width, width], (l,), name="w")
            x = rc.like(rc.f32[width], domain=(l, t))
            y = (x @ w).tanh()
            x[0, 0] = rc.constant(np.ones(width, np.float32))
            x[0, t] = y[L - 1, t - 1]
            x[l, t] = y[l - 1, t]
            rc.output(top=y[L - 1, t])
        p = ctx.compile({L: 3, T: 20}, backend="jax")
        (told,) = (x for x in p.compiled.stages.decisions if x.startswith("l: "))
        return told

    assert "l: counted inside of a launch (to cut 0.0016 MB" in decided(20)
    assert "l: the host counts it (to cut 1 MB out costs" in decided(512)
